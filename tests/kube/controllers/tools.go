//go:build tools

// Names the JobSet controller, which the tests of jobs as units run; a module of its own, because it
// follows other versions of the Kubernetes libraries.
package tools

import _ "sigs.k8s.io/jobset"
