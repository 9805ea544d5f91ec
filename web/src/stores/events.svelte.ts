// Live events of the server. A lost connection resumes after the last event received.
import { call } from '../api/client.ts'
import type { Event } from '../api/types.ts'

/** Events are handed on together, so that a burst causes one update of the page. */
const BATCH_MS = 200
const FIRST_RETRY_MS = 500
const LAST_RETRY_MS = 15_000
/** After a longer silence the lists are read anew instead of replaying all missed events. */
const REPLAY_MS = 5 * 60_000
/** The server sends a comment every 10 s, but a browser does not show it; this only bounds the first answer. */
const OPEN_MS = 20_000
/** A browser holds six connections to a server: a page in the background gives its own back. */
const HIDDEN_MS = 30_000

export type Connection = 'connecting' | 'live' | 'lost'

class Events {
  connection = $state<Connection>('connecting')
  lostAt = $state(0)
  /** Time at which the first live event was asked for. */
  since = Date.now()
  #source: EventSource | undefined
  #last = 0
  #retry = FIRST_RETRY_MS
  #timer: ReturnType<typeof setTimeout> | undefined
  #waiting: Event[] = []
  #flush: ReturnType<typeof setTimeout> | undefined
  #handlers = new Set<(batch: Event[]) => void>()
  #reloads = new Set<() => void>()
  #running = false
  #hidden: ReturnType<typeof setTimeout> | undefined

  /** Calls the handler with batches of events, in order. */
  onBatch(handler: (batch: Event[]) => void): () => void {
    this.#handlers.add(handler)
    return () => this.#handlers.delete(handler)
  }

  /** Calls the handler when events may have been missed. */
  onReload(handler: () => void): () => void {
    this.#reloads.add(handler)
    return () => this.#reloads.delete(handler)
  }

  async start(): Promise<void> {
    this.#running = true
    document.addEventListener('visibilitychange', () => this.#visible())
    try {
      this.#last = await newest()
      this.#open()
    } catch {
      this.#lost()
    }
  }

  #visible(): void {
    clearTimeout(this.#hidden)
    if (document.hidden) this.#hidden = setTimeout(() => this.#pause(), HIDDEN_MS)
    else if (!this.#running) {
      this.#running = true
      void this.#again()
    }
  }

  #pause(): void {
    this.#running = false
    this.lostAt = Date.now()
    this.connection = 'connecting'
    clearTimeout(this.#timer)
    this.#source?.close()
    this.#source = undefined
  }

  #open(): void {
    this.#source?.close()
    const source = new EventSource(`/events?after=${this.#last}`)
    this.#source = source
    const slow = setTimeout(() => source.readyState === EventSource.CONNECTING && this.#lost(), OPEN_MS)
    source.onopen = () => {
      clearTimeout(slow)
      this.connection = 'live'
      this.#retry = FIRST_RETRY_MS
    }
    source.onmessage = (message) => this.#receive(message.data)
    source.onerror = () => {
      clearTimeout(slow)
      if (this.#source === source) this.#lost()
    }
  }

  #receive(data: string): void {
    const event = JSON.parse(data) as Event
    if (event.seq <= this.#last) return
    this.#last = event.seq
    this.#waiting.push(event)
    this.#flush ??= setTimeout(() => this.#hand(), BATCH_MS)
  }

  #hand(): void {
    this.#flush = undefined
    const batch = this.#waiting
    this.#waiting = []
    for (const handler of this.#handlers) handler(batch)
  }

  #lost(): void {
    this.#source?.close()
    this.#source = undefined
    if (this.connection !== 'lost') this.lostAt = Date.now()
    this.connection = 'lost'
    clearTimeout(this.#timer)
    if (!this.#running) return
    this.#timer = setTimeout(() => this.#again(), this.#retry * (0.75 + Math.random() / 2))
    this.#retry = Math.min(this.#retry * 2, LAST_RETRY_MS)
  }

  async #again(): Promise<void> {
    try {
      // Fails while the server is down; a new server may have another history, a rejected session is renewed.
      const last = await newest()
      const gone = last < this.#last || Date.now() - this.lostAt > REPLAY_MS
      if (gone) {
        this.#last = last
        for (const reload of this.#reloads) reload()
      }
      this.#open()
    } catch {
      this.#lost()
    }
  }
}

async function newest(): Promise<number> {
  const latest = await call('get', '/events/past', { query: { limit: 1 } })
  return latest.at(-1)?.seq ?? 0
}

export const events = new Events()
