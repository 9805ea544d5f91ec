// Alerts, silences and sinks: read at the start, when an event reports a change, and every half minute.
import { call } from '../api/client.ts'
import { cause } from '../api/failure.ts'
import type { Alert, AlertReport } from '../api/types.ts'
import { events } from './events.svelte.ts'

const POLL_MS = 30_000

class Alerts {
  report = $state.raw<AlertReport>()
  error = $state('')
  #started = false

  readonly firing = $derived((this.report?.alerts ?? []).filter((alert) => alert.state === 'firing'))

  start(): void {
    if (this.#started) return
    this.#started = true
    events.onBatch((batch) => batch.some((event) => event.kind.startsWith('Alert')) && void this.load())
    events.onReload(() => void this.load())
    setInterval(() => !document.hidden && void this.load(), POLL_MS)
    void this.load()
  }

  async load(): Promise<void> {
    try {
      this.report = await call('get', '/alerts')
      this.error = ''
    } catch (error) {
      this.error = cause(error)
    }
  }
}

export const alerts = new Alerts()

/** Word for the state of an alert in lists. */
export function state(alert: Alert): string {
  if (alert.state !== 'firing') return alert.state
  return alert.silenced_by ? 'silenced' : alert.severity
}
