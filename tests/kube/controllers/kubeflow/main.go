// Runs the controllers of PyTorchJob and MPIJob for one namespace. Their own programs also listen on fixed ports and manage
// certificates, which tests that run concurrently cannot share.
package main

import (
	"context"
	"os"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	mpiclient "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	mpischeme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	mpiinformers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	mpi "github.com/kubeflow/mpi-operator/pkg/controller"
	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	schedulerplugins "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
)

func main() {
	namespace := os.Args[1]
	ctrl.SetLogger(zap.New())
	ctx, cluster := ctrl.SetupSignalHandler(), ctrl.GetConfigOrDie()
	cluster.QPS, cluster.Burst = 200, 400
	must(kubeflow.AddToScheme(scheme.Scheme))
	must(mpischeme.AddToScheme(scheme.Scheme))
	// The PyTorchJob controller watches pod groups of both kinds if the cluster has them.
	must(schedulerplugins.AddToScheme(scheme.Scheme))
	must(volcano.AddToScheme(scheme.Scheme))
	go runMPI(ctx, cluster, namespace)
	runPyTorch(ctx, cluster, namespace)
}

func runPyTorch(ctx context.Context, cluster *rest.Config, namespace string) {
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	manager, err := ctrl.NewManager(cluster, ctrl.Options{
		Scheme:  scheme.Scheme,
		Metrics: server.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	must(err)
	reconciler := pytorch.NewReconciler(manager, common.GenNonGangSchedulerSetupFunc())
	must(reconciler.SetupWithManager(manager, 1))
	must(manager.Start(ctx))
}

func runMPI(ctx context.Context, cluster *rest.Config, namespace string) {
	client, jobs := kubernetes.NewForConfigOrDie(cluster), mpiclient.NewForConfigOrDie(cluster)
	core := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	own := mpiinformers.NewSharedInformerFactoryWithOptions(jobs, 0, mpiinformers.WithNamespace(namespace))
	settings := &options.ServerOption{Namespace: namespace, ControllerRateLimit: 200, ControllerBurst: 400}
	controller, err := mpi.NewMPIJobController(
		ctx, client, jobs, nil, nil,
		core.Core().V1().ConfigMaps(), core.Core().V1().Secrets(), core.Core().V1().Services(),
		core.Batch().V1().Jobs(), core.Core().V1().Pods(), core.Scheduling().V1().PriorityClasses(),
		own.Kubeflow().V2beta1().MPIJobs(), settings)
	must(err)
	core.Start(ctx.Done())
	own.Start(ctx.Done())
	must(controller.Run(2, ctx.Done()))
}

func must(err error) {
	if err != nil {
		ctrl.Log.Error(err, "cannot run the controllers")
		os.Exit(1)
	}
}
