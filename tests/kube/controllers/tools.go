//go:build tools

// Names the controllers that the tests of jobs as units run. They share a module, so that Go builds the Kubernetes libraries
// once for all; it follows other versions of them than the control plane.
package tools

import (
	_ "sigs.k8s.io/jobset"
	_ "sigs.k8s.io/lws/cmd"
)
