// The pending job under the pointer, with the scheduler's explanation.
import { call } from '../api/client.ts'
import { cause } from '../api/failure.ts'
import type { Explanation } from '../api/types.ts'
import { jobs } from './jobs.svelte.ts'

const SETTLE_MS = 120
const FRESH_MS = 5000

class Candidate {
  jobId = $state<number>()
  row = $derived((void jobs.version, this.jobId === undefined ? undefined : jobs.rows.get(this.jobId)))
  explanation = $state.raw<Explanation>()
  error = $state('')
  /** Nodes that the scheduler considers for the job. */
  nodes = $derived(new Set([...(this.explanation?.closest ?? []), ...(this.explanation?.placement ?? [])].map((node) => node.node_id)))
  #cache = new Map<number, { at: number; explanation: Explanation }>()
  #timer: ReturnType<typeof setTimeout> | undefined

  show(jobId: number): void {
    if (this.jobId === jobId) return
    this.jobId = jobId
    this.explanation = undefined
    this.error = ''
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void this.#ask(jobId), SETTLE_MS)
  }

  clear(): void {
    clearTimeout(this.#timer)
    this.jobId = undefined
    this.explanation = undefined
    this.error = ''
  }

  async #ask(jobId: number): Promise<void> {
    const known = this.#cache.get(jobId)
    try {
      const fresh = known && Date.now() - known.at < FRESH_MS
      const explanation = fresh ? known.explanation : await call('get', '/gpu-workers/jobs/{job_id}/explain', { path: { job_id: jobId } })
      this.#cache.set(jobId, { at: fresh ? known.at : Date.now(), explanation })
      if (this.jobId === jobId) this.explanation = explanation
    } catch (error) {
      if (this.jobId === jobId) this.error = cause(error)
    }
  }
}

export const candidate = new Candidate()
