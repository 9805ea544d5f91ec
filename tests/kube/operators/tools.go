//go:build tools

// Names the operators that the tests of jobs as units run. They need other versions of the Kubernetes libraries than the module
// `controllers`.
package tools

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
	_ "github.com/ray-project/kuberay/ray-operator"
)
