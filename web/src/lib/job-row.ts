// A job as the lists need it: a tenth of the memory of the whole object.
import type { Event, Job, JobStatus } from '../api/types.ts'

export interface JobRow {
  id: number
  name: string
  status: JobStatus
  user: string
  userId: number
  queue: string
  priority: number
  /** GPUs of all tasks; a share of one GPU is below 1. */
  gpus: number
  created: number
  started: number | undefined
  ended: number | undefined
  /** Dollars at `costAt`; a running job adds `price` per hour. */
  cost: number
  costAt: number
  price: number
  wait: string
  stopping: boolean
  /** Model and memory that the job asks of each GPU. */
  gpuType: string
  gpuMemory: number
  places: { node: string; nodeName: string; gpus: string[] }[]
}

export function rowOf(job: Job, now: number): JobRow {
  return {
    id: job.id,
    name: job.job_name ?? '',
    status: job.status,
    user: job.username ?? `#${job.user_id}`,
    userId: job.user_id,
    queue: job.queue ?? 'root',
    priority: job.priority ?? 5,
    gpus: gpusOf(job),
    created: Date.parse(job.created_at),
    started: time(job.started_at),
    ended: time(job.completed_at),
    cost: job.cost,
    costAt: now,
    price: job.price_per_hour ?? 0,
    wait: job.wait_reason ?? job.error_message ?? '',
    stopping: job.cancel_requested,
    gpuType: job.gpu_type ?? '',
    gpuMemory: job.gpu_memory_required ?? 0,
    places: job.tasks.map((task) => ({ node: task.node_id, nodeName: task.node_name, gpus: task.gpus })),
  }
}

function gpusOf(job: Job): number {
  const each = job.gpu_fraction ?? job.gpu_count ?? (job.gpu_memory_required || job.mig_profile ? 1 : 0)
  return each * (job.replicas ?? 1)
}

function time(at: string | null | undefined): number | undefined {
  return at ? Date.parse(at) : undefined
}

export function isLive(status: JobStatus): boolean {
  return status === 'pending' || status === 'scheduled' || status === 'running'
}

const STATUS_AFTER: Record<string, JobStatus> = {
  Submitted: 'pending',
  Waiting: 'pending',
  Retrying: 'pending',
  Requeued: 'pending',
  Scheduled: 'scheduled',
  Starting: 'scheduled',
  Pulling: 'scheduled',
  Started: 'running',
  Completed: 'completed',
  Failed: 'failed',
  Cancelled: 'cancelled',
}

/** The row after an event; the other fields follow when the job is read again. */
export function rowAfter(row: JobRow, event: Event): JobRow {
  const status = STATUS_AFTER[event.kind]
  if (!status) return event.kind === 'CancelRequested' ? { ...row, stopping: true } : row
  const at = Date.parse(event.at)
  const next: JobRow = { ...row, status }
  if (status === 'pending') Object.assign(next, { wait: event.kind === 'Waiting' ? event.message : row.wait, places: [], started: undefined })
  if (status === 'running') Object.assign(next, { started: row.started ?? at, wait: '' })
  if (!isLive(status)) Object.assign(next, { ended: at, stopping: false, cost: costNow(row, at), costAt: at })
  return next
}

export function costNow(row: JobRow, now: number): number {
  const runs = row.status === 'running' || row.status === 'scheduled'
  return runs ? row.cost + (row.price * Math.max(0, now - row.costAt)) / 3_600_000 : row.cost
}

/** Seconds of the run so far, or of the whole run. */
export function runSeconds(row: JobRow, now: number): number | undefined {
  if (row.started === undefined) return undefined
  return ((row.ended ?? now) - row.started) / 1000
}
