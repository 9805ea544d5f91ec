// The latest events of the cluster.
import { call } from '../api/client.ts'
import { cause } from '../api/failure.ts'
import type { Event } from '../api/types.ts'
import { events } from './events.svelte.ts'

const MOST = 50

class Feed {
  latest = $state.raw<Event[]>([])
  error = $state('')
  #started = false

  start(): void {
    if (this.#started) return
    this.#started = true
    events.onBatch((batch) => this.#add(batch))
    events.onReload(() => void this.#load())
    void this.#load()
  }

  async #load(): Promise<void> {
    try {
      const past = await call('get', '/events/past', { query: { limit: MOST } })
      this.latest = past.reverse()
      this.error = ''
    } catch (error) {
      this.error = cause(error)
    }
  }

  #add(batch: Event[]): void {
    const newest = this.latest[0]?.seq ?? 0
    const news = batch.filter((event) => event.seq > newest).reverse()
    if (news.length > 0) this.latest = [...news, ...this.latest].slice(0, MOST)
  }
}

export const feed = new Feed()
