//go:build tools

// Names KWOK, which plays the nodes of the tests' control plane; a module of its own, because it
// follows other versions of the Kubernetes libraries.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
