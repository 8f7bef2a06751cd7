{{- define "elastrain.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 51 characters, so that the longest name made from it, with -coordinator, is a DNS label. */}}
{{- define "elastrain.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 51 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 51 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 51 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide names carry the namespace: two releases of one name may live in two namespaces. */}}
{{- define "elastrain.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "elastrain.fullname" .) -}}
{{- end -}}

{{- define "elastrain.coordinator" -}}
{{- printf "%s-coordinator" (include "elastrain.fullname" .) -}}
{{- end -}}

{{- define "elastrain.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "elastrain.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "elastrain.tlsSecret" -}}
{{- default (printf "%s-tls" (include "elastrain.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{- define "elastrain.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "elastrain.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "elastrain.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: elastrain
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "elastrain.labels" -}}
{{ include "elastrain.commonLabels" . }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* A Deployment's selector can never change: only what never changes is in it. */}}
{{- define "elastrain.selectorLabels" -}}
app.kubernetes.io/name: {{ include "elastrain.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "elastrain.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "elastrain.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* What the operator does where jobs are: in all namespaces, or in each of watchNamespaces. */}}
{{- define "elastrain.jobRules" -}}
- apiGroups: [elastrain.dev]
  resources: [trainjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [elastrain.dev]
  resources: [trainjobs/status]
  verbs: [patch, update]
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, watch, patch, delete] # patch: the certificates that running agents trust
- apiGroups: [""]
  resources: [services]
  verbs: [create, get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.networkPolicy.jobs }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
{{- end }}
{{- end -}}
