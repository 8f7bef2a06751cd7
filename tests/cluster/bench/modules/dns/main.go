// A CoreDNS with no more than a cluster of tests needs, so that it builds in a fraction of the time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() { dnsserver.Directives = []string{"bind", "errors", "template", "kubernetes"} }

func main() { coremain.Run() }
