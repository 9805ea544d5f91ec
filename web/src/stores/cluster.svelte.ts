// Totals of the cluster, and their history: the last hour from the server, then the readings of this page.
import { call } from '../api/client.ts'
import { isLive } from '../lib/job-row.ts'
import { column, History, timesOf, withoutEmptyEnd } from '../lib/history.ts'
import { jobs } from './jobs.svelte.ts'
import { nodes } from './nodes.svelte.ts'
import { session } from './session.svelte.ts'

const SAMPLE_MS = 5000

export interface Totals {
  gpus: number
  free: number
  used: number
  /** Neither free nor used: cordoned, draining, broken or offline. */
  out: number
  /** Mean of the GPUs with a reading, in percent. */
  utilization: number | undefined
  pending: number
  running: number
  dollarsPerHour: number
}

/** Columns of the history. */
export const COLUMNS = { used: 0, utilization: 1, pending: 2, running: 3, dollars: 4 }

class Cluster {
  totals = $derived.by(() => this.#count())
  readonly history = new History(5)
  samples = $state(0)

  start(): void {
    setInterval(() => this.#sample(), SAMPLE_MS)
    setTimeout(() => this.#sample(), 1500)
    void this.#loadPast()
  }

  async #loadPast(): Promise<void> {
    // Without the past, curves begin now.
    if (!session.has('history')) return
    const past = await call('get', '/history/cluster', { query: { points: 240 } }).catch(() => undefined)
    if (!past) return
    const names = ['gpus_used', 'utilization_percent', 'jobs_pending', 'jobs_running', 'dollars_per_hour']
    const known = withoutEmptyEnd(past)
    this.history.prepend(timesOf(known), names.map((name) => column(known.series[0], name)))
    this.samples++
  }

  #count(): Totals {
    void jobs.version
    const totals: Totals = { gpus: nodes.gpus.length, free: 0, used: 0, out: 0, utilization: undefined, pending: 0, running: 0, dollarsPerHour: 0 }
    let sum = 0
    let read = 0
    for (const gpu of nodes.gpus) {
      if (gpu.state === 'free') totals.free++
      else if (gpu.state === 'used' || gpu.state === 'shared') totals.used++
      else totals.out++
      if (gpu.utilization !== undefined && gpu.state !== 'offline') {
        sum += gpu.utilization
        read++
      }
    }
    totals.utilization = read > 0 ? sum / read : undefined
    for (const row of jobs.rows.values()) {
      if (!isLive(row.status)) continue
      if (row.status === 'pending') totals.pending++
      else {
        totals.running++
        totals.dollarsPerHour += row.price
      }
    }
    return totals
  }

  #sample(): void {
    if (!nodes.loaded || !jobs.loaded) return
    const t = this.totals
    this.history.push(Date.now(), [t.used, t.utilization, t.pending, t.running, t.dollarsPerHour])
    this.samples++
  }
}

export const cluster = new Cluster()
