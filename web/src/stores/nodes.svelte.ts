// Nodes and their GPUs, read every few seconds, with their readings: the last hour from the server, then those of this page.
import { call, page } from '../api/client.ts'
import { cause } from '../api/failure.ts'
import type { Node } from '../api/types.ts'
import { gpuKey, gpusOf, type Gpu } from '../lib/gpu.ts'
import { column, History, timesOf, withoutEmptyEnd } from '../lib/history.ts'
import { events } from './events.svelte.ts'
import { session } from './session.svelte.ts'

const POLL_MS = 5000
const PAGE = 200
/** Events of nodes that change a list before its next poll. */
const SOON_MS = 500

/** Columns of the history of one GPU. */
export const GPU_COLUMNS = { utilization: 0, memory: 1, power: 2, temperature: 3 }
/** One hour of the server at one reading every 15 s, and one hour of this page at one every 5 s. */
const GPU_READINGS = 960
const MIB_OF_GIB = 1024

class Nodes {
  nodes = $state.raw<Node[]>([])
  gpus = $state.raw<Gpu[]>([])
  loaded = $state(false)
  error = $state('')
  /** Number of readings so far. */
  readings = $state(0)
  readonly history = new Map<string, History>()
  #soon: ReturnType<typeof setTimeout> | undefined
  #busy = false
  /** Nodes whose past was requested. */
  readonly #past = new Set<string>()

  start(): void {
    events.onBatch((batch) => batch.some((event) => event.node_id || event.job_id) && this.#loadSoon())
    events.onReload(() => void this.load())
    setInterval(() => !document.hidden && void this.load(), POLL_MS)
    document.addEventListener('visibilitychange', () => !document.hidden && void this.load())
    void this.load()
  }

  node(id: string): Node | undefined {
    return this.nodes.find((node) => node.node_id === id)
  }

  /** Loads the last hour of the GPUs of a node, once. */
  async loadPast(id: string): Promise<void> {
    if (this.#past.has(id) || !session.has('history')) return
    this.#past.add(id)
    // Without the past, curves begin now.
    const past = await call('get', '/history/nodes/{node_id}', { path: { node_id: id }, query: { points: 240 } }).catch(() => undefined)
    if (!past) return
    const known = withoutEmptyEnd(past)
    const times = timesOf(known)
    for (const series of known.series) {
      const columns = [column(series, 'utilization_percent'), column(series, 'memory_mib', MIB_OF_GIB), column(series, 'power_watts'), column(series, 'temperature_celsius')]
      this.#historyOf(gpuKey(id, series.name)).prepend(times, columns)
    }
    this.readings++
  }

  async load(): Promise<void> {
    if (this.#busy) return
    this.#busy = true
    try {
      const nodes: Node[] = []
      let total = 0
      do {
        const answer = await page('/gpu-workers/nodes', { query: { skip: nodes.length, limit: PAGE } })
        total = answer.total
        nodes.push(...answer.rows)
        if (answer.rows.length === 0) break
      } while (nodes.length < total)
      this.#take(nodes)
      this.error = ''
    } catch (error) {
      this.error = cause(error)
    } finally {
      this.#busy = false
    }
  }

  #loadSoon(): void {
    // Bounded: an event brings the next poll forward, a stream of events does not multiply polls.
    this.#soon ??= setTimeout(() => {
      this.#soon = undefined
      if (!document.hidden) void this.load()
    }, this.gpus.length > 200 ? POLL_MS / 2 : SOON_MS)
  }

  #take(nodes: Node[]): void {
    nodes.sort((a, b) => a.node_name.localeCompare(b.node_name, 'en', { numeric: true }))
    this.nodes = nodes
    this.gpus = nodes.flatMap(gpusOf)
    const now = Date.now()
    for (const gpu of this.gpus) {
      const history = this.#historyOf(gpu.key)
      const last = history.times.at(-1) ?? 0
      // Readings change with heartbeats; polls brought forward by events add no point.
      if (now / 1000 - last >= POLL_MS / 1000 - 1) history.push(now, [gpu.utilization, gpu.memoryUsed / 1024, gpu.power, gpu.temperature])
    }
    this.loaded = true
    this.readings++
  }

  #historyOf(key: string): History {
    const history = this.history.get(key) ?? new History(4, GPU_READINGS)
    this.history.set(key, history)
    return history
  }
}

export const nodes = new Nodes()
