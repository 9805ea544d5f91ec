// The network policy controller of kube-router without its router, which needs IPVS. Enforces NetworkPolicies for the pods of one
// node until TERM, then removes its rules.
package main

import (
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the cluster")
	node := flag.String("node", "", "node whose pods are protected")
	flag.Parse()
	if err := run(*kubeconfig, *node); err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, node string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.EnableIPv4 = true
	config.HostnameOverride = node
	commands, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, commands, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, namespaces: controller.NamespaceEventHandler, policies: controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(heartbeats, stop, &running)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	close(stop)
	running.Wait()
	controller.Cleanup()
	return removeAcceptance(commands[v1.IPv4Protocol])
}

// The controller leaves its rules that accept marked packets.
func removeAcceptance(commands utils.IPTablesHandler) error {
	rule := []string{
		"-m", "comment", "--comment", "KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies",
		"-m", "mark", "--mark", "0x20000/0x20000", "-j", "ACCEPT",
	}
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		for {
			exists, err := commands.Exists("filter", chain, rule...)
			if err != nil {
				return err
			}
			if !exists {
				break
			}
			if err := commands.Delete("filter", chain, rule...); err != nil {
				return err
			}
		}
	}
	return nil
}
