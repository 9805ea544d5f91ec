// A GPU as the map, the grid and the curves need it.
import type { GpuInstance, Node } from '../api/types.ts'

/** State of a GPU, for colour and text. */
export type GpuState = 'free' | 'shared' | 'used' | 'cordoned' | 'draining' | 'broken' | 'offline'

export interface Gpu {
  key: string
  nodeId: string
  nodeName: string
  index: number
  uuid: string
  model: string
  /** MiB. */
  memory: number
  memoryUsed: number
  utilization: number | undefined
  temperature: number | undefined
  power: number | undefined
  throttled: string[]
  /** Problem with its remedy. */
  problem: string | undefined
  state: GpuState
}

export const STATE_TEXT: Record<GpuState, string> = {
  free: 'free',
  shared: 'partly allocated',
  used: 'allocated',
  cordoned: 'cordoned',
  draining: 'draining',
  broken: 'error',
  offline: 'node offline',
}

export function gpuKey(nodeId: string, index: string | number): string {
  return `${nodeId}/${index}`
}

/** GPUs of a node. A node without readings has as many GPUs as it registered. */
export function gpusOf(node: Node): Gpu[] {
  const known = node.gpu_instances ?? []
  const instances: GpuInstance[] = known.length > 0 ? known : Array.from({ length: node.gpu_count ?? 0 }, (_, index) => ({ gpu_index: index, throttled: [] }))
  return instances.map((instance, at) => gpuOf(node, instance, instance.gpu_index ?? at))
}

/** Returns true if the GPU has room, and the model and memory that a job asks for. The scheduler has the last word. */
export function couldServe(gpu: Gpu, job: { gpus: number; gpuType: string; gpuMemory: number }): boolean {
  const shares = gpu.state === 'shared' && job.gpus < 1
  if (gpu.state !== 'free' && !shares) return false
  const wanted = job.gpuType.toLowerCase().replace('nvidia', '').trim()
  return gpu.model.toLowerCase().includes(wanted) && gpu.memory - gpu.memoryUsed >= job.gpuMemory
}

function gpuOf(node: Node, instance: GpuInstance, index: number): Gpu {
  const memory = instance.gpu_memory ?? (node.gpu_memory_total ?? 0) / Math.max(1, node.gpu_count ?? 1)
  const free = instance.gpu_memory_available ?? memory
  return {
    key: gpuKey(node.node_id, index),
    nodeId: node.node_id,
    nodeName: node.node_name,
    index,
    uuid: instance.gpu_uuid ?? '',
    model: instance.gpu_name ?? instance.gpu_type ?? node.gpu_type ?? 'GPU',
    memory,
    memoryUsed: Math.max(0, memory - free),
    utilization: instance.utilization ?? undefined,
    temperature: instance.temperature ?? undefined,
    power: instance.power_usage ?? undefined,
    throttled: instance.throttled ?? [],
    problem: instance.problem ?? undefined,
    state: stateOf(node, instance, index, free, memory),
  }
}

function stateOf(node: Node, instance: GpuInstance, index: number, free: number, memory: number): GpuState {
  const listed = (names: string[] | undefined) => (names ?? []).some((name) => name === String(index) || name === instance.gpu_uuid)
  if (node.status === 'inactive' || node.status === 'error' || !node.reachable) return 'offline'
  if (instance.status === 'error') return 'broken'
  if (node.draining || listed(node.draining_gpus)) return 'draining'
  if (free <= 0 || instance.status === 'busy') return free > 0 && free < memory ? 'shared' : 'used'
  if (node.cordoned || instance.status === 'maintenance' || listed(node.cordoned_gpus)) return 'cordoned'
  return free < memory ? 'shared' : 'free'
}
