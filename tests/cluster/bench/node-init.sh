#!/bin/bash
# PID 1 of a node: makes the node's own view of the machine, then runs containerd, the kubelet and kube-proxy.
# Arguments: name, index. Environment: STATE (the node's disk), TOOLS, CGROUP, TORCH, ADDRESS, POD_CIDR, DNS.
set -u
name=$1 index=$2
hierarchies=$(ls /sys/fs/cgroup)
if [ -z "${INNER:-}" ]; then
  for h in $hierarchies; do echo 0 > "/sys/fs/cgroup/$h/$CGROUP/$name/cgroup.procs"; done
  INNER=1 exec unshare --cgroup "$0" "$@"
fi
mount --make-rprivate /
hostname "$name"
for h in $hierarchies; do
  umount "/sys/fs/cgroup/$h" 2>/dev/null
  case $h in
    unified) mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified ;;
    systemd) mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd ;;
    *) mount -t cgroup -o "$h" cgroup "/sys/fs/cgroup/$h" ;;
  esac
done
# Every daemon uses its default paths, which are this node's own: some of them cannot be configured.
for path in /var/lib/containerd /run/containerd /var/lib/kubelet /var/log/pods /var/log/containers /etc/cni/net.d \
            /run/netns /var/lib/cni /etc/containerd /run/xtables.lock.d; do
  mkdir -p "$STATE/disk$path" "$path"
  mount --bind "$STATE/disk$path" "$path"
done
mount --make-rshared /
# The kubelet wants these kernel-wide values: it is shown them, the machine keeps its own.
show() { echo "$2" > "$STATE/sysctl-${1//\//-}"; mount --bind "$STATE/sysctl-${1//\//-}" "/proc/sys/$1"; }
show vm/overcommit_memory 1
show vm/panic_on_oom 0
show kernel/panic 10
show kernel/panic_on_oops 1
show kernel/keys/root_maxkeys 1000000
show kernel/keys/root_maxbytes 25000000
sysctl -qw net.ipv4.ip_forward=1
echo "nameserver $DNS" > "$STATE/resolv.conf"
export PATH=$TOOLS:$PATH
ctr oci spec | python3 -c '
import json, os, sys
spec = json.load(sys.stdin)
torch = os.environ.get("TORCH")
if torch:
    spec["mounts"].append({"destination": "/opt/torch", "type": "bind", "source": torch, "options": ["rbind", "ro"]})
json.dump(spec, open("/etc/containerd/base-spec.json", "w"))'
cat > /etc/containerd/config.toml <<TOML
version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'localhost/pause:3'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['$TOOLS']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  base_runtime_spec = '/etc/containerd/base-spec.json'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = '$TOOLS/runc'
    SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
TOML
cat > /etc/cni/net.d/10-bench.conflist <<CNI
{"cniVersion": "1.0.0", "name": "bench", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": false}]}
CNI
declare -A names
start() { local what=$1; shift; "$@" > "$STATE/$what.log" 2>&1 & names[$!]=$what; }
start containerd containerd --log-level warn
for _ in $(seq 200); do ctr version > /dev/null 2>&1 && break; sleep 0.05; done
start kubelet kubelet --config="$STATE/kubelet.json" --kubeconfig="$STATE/kubelet.kubeconfig" \
  --hostname-override="$name" --node-ip="$ADDRESS" --root-dir=/var/lib/kubelet --v=1
start kube-proxy kube-proxy --config="$STATE/proxy.json" --hostname-override="$name"
# Which daemon ended is written down for `up`; the node itself lives until it is killed. bash reaps orphans meanwhile.
while [ ${#names[@]} -gt 0 ]; do
  wait -n -p pid
  code=$?
  [ -n "${names[$pid]:-}" ] && echo "${names[$pid]} $code" >> "$STATE/ended"
  unset "names[$pid]"
done
exec sleep infinity
