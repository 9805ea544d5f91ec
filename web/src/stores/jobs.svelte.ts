// All jobs that the user may see, kept current by events.
import { call, page } from '../api/client.ts'
import { cause, Failure } from '../api/failure.ts'
import type { Event, Job } from '../api/types.ts'
import { isLive, rowAfter, rowOf, type JobRow } from '../lib/job-row.ts'
import { events } from './events.svelte.ts'

const MOST = 10_000
/** Rows of one request: parsing a larger answer would stall the page. */
const PAGE = 250
/** Rows beyond `MOST` before the oldest ended ones are dropped. */
const SPARE = 1000
const REFRESH_MS = 1000
/** Jobs read again one by one in an interval; beyond that the newest page is read. */
const SINGLES = 8

class Jobs {
  /** Changes with every update of the rows. */
  version = $state(0)
  loaded = $state(false)
  /** All jobs of the server, of which the newest are in `rows`. */
  total = $state(0)
  error = $state('')
  readonly rows = new Map<number, JobRow>()
  /** Rows on the screen; they are read again first. */
  watched = new Set<number>()
  #stale = new Set<number>()
  #busy = false
  #generation = 0

  start(): void {
    events.onBatch((batch) => this.#apply(batch))
    events.onReload(() => void this.load())
    setInterval(() => void this.#refresh(), REFRESH_MS)
    void this.load()
  }

  /** Number of rows, as a value that views follow. */
  get size(): number {
    void this.version
    return this.rows.size
  }

  /** Live jobs first, then the newest of all. */
  async load(): Promise<void> {
    const generation = ++this.#generation
    try {
      await this.#pages(generation, 'pending,scheduled,running')
      this.loaded = true
      await this.#pages(generation, undefined)
      this.error = ''
    } catch (error) {
      this.error = cause(error)
      if (generation === this.#generation) setTimeout(() => void this.load(), 5000)
    }
  }

  /** Jobs of the server with this text in the name, for lists longer than `MOST`. */
  async search(name: string): Promise<void> {
    this.#take((await page('/gpu-workers/jobs', { query: { name, limit: PAGE } })).rows)
  }

  take(job: Job): void {
    this.#take([job])
  }

  *live(): Generator<JobRow> {
    for (const row of this.rows.values()) if (isLive(row.status)) yield row
  }

  async #pages(generation: number, status: string | undefined): Promise<void> {
    let before: number | undefined
    do {
      const answer = await page('/gpu-workers/jobs', { query: { limit: PAGE, ...(status ? { status } : {}), ...(before ? { before } : {}) } })
      if (generation !== this.#generation) return
      this.#take(answer.rows)
      if (!status) this.total = answer.total
      before = answer.next
    } while (before && this.rows.size < MOST)
  }

  #take(jobs: Job[]): void {
    const now = Date.now()
    for (const job of jobs) {
      this.rows.set(job.id, rowOf(job, now))
      this.#stale.delete(job.id)
    }
    if (this.rows.size > MOST + SPARE) this.#forget()
    this.version++
  }

  #forget(): void {
    const ended = [...this.rows.values()].filter((row) => !isLive(row.status)).map((row) => row.id)
    for (const id of ended.sort((a, b) => a - b).slice(0, this.rows.size - MOST)) this.rows.delete(id)
  }

  #apply(batch: Event[]): void {
    let changed = false
    for (const event of batch) {
      const id = event.job_id
      if (id == null) continue
      changed = true
      this.#stale.add(id)
      const row = this.rows.get(id)
      if (row) this.rows.set(id, rowAfter(row, event))
      else if (event.kind === 'Submitted') this.total++
    }
    if (changed) this.version++
  }

  /** Reads jobs again that events changed: on the screen first, then the newest. */
  async #refresh(): Promise<void> {
    if (this.#busy || this.#stale.size === 0 || document.hidden) return
    this.#busy = true
    try {
      if (this.#stale.size > SINGLES * 4) this.#take((await page('/gpu-workers/jobs', { query: { limit: 100 } })).rows)
      await Promise.all(this.#next().map((id) => this.#reload(id)))
    } catch {
      // The jobs stay stale and are read again in the next interval.
    } finally {
      this.#busy = false
    }
  }

  #next(): number[] {
    const rank = (id: number) => (this.watched.has(id) ? MOST * 1000 : 0) + id
    return [...this.#stale].sort((a, b) => rank(b) - rank(a)).slice(0, SINGLES)
  }

  async #reload(id: number): Promise<void> {
    this.#stale.delete(id)
    try {
      this.#take([await call('get', '/gpu-workers/jobs/{job_id}', { path: { job_id: id } })])
    } catch (error) {
      // Retention deletes ended jobs.
      const gone = error instanceof Failure && error.status === 404
      if (gone) this.rows.delete(id)
      else this.#stale.add(id)
      if (!gone) throw error
    }
  }
}

export const jobs = new Jobs()
