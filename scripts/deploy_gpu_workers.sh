#!/bin/sh
# Deploys a worker on each GPU node of the current cluster. See docs/workers.md.
#
#   API_ENDPOINT=http://head:8000 REGISTRATION_TOKEN=… ./scripts/deploy_gpu_workers.sh
#
# Without REGISTRATION_TOKEN the Secret imagepod-secrets must exist or be created later.
set -eu

: "${API_ENDPOINT:?say where the server is: API_ENDPOINT=http://head:8000}"
case $API_ENDPOINT in
    *[!A-Za-z0-9:/._-]*) echo "API_ENDPOINT: \`$API_ENDPOINT\` is no address" >&2; exit 2 ;;
esac
worker=$(dirname "$0")/../deploy/worker

kubectl apply -f "$worker/00-namespace.yaml" -f "$worker/10-rbac.yaml" -f "$worker/15-network-policy.yaml"
if [ -n "${REGISTRATION_TOKEN:-}" ]; then
    # Through a pipe: other users of this machine can read command line arguments.
    printf %s "$REGISTRATION_TOKEN" |
        kubectl create secret generic imagepod-secrets --namespace=imagepod \
            --from-file=registration-token=/dev/stdin --dry-run=client --output=yaml |
        kubectl apply -f -
fi
sed "s|http://agentaflow-server.imagepod.svc:8000|$API_ENDPOINT|" "$worker/20-worker.yaml" | kubectl apply -f -
kubectl get daemonset,pods --namespace=imagepod --selector=app=imagepod-gpu-worker
