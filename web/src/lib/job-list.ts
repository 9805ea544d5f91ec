// Filter and order of the list of jobs.
import { costNow, runSeconds, type JobRow } from './job-row.ts'

export type SortKey = 'id' | 'name' | 'status' | 'user' | 'queue' | 'gpus' | 'time' | 'cost'

export interface ListQuery {
  text: string
  /** One status, `live`, or empty for all. */
  status: string
  queue: string
  sort: SortKey
  descending: boolean
}

const STATUS_ORDER = ['running', 'scheduled', 'pending', 'failed', 'cancelled', 'completed']

export function selected(rows: Iterable<JobRow>, query: ListQuery, now: number): JobRow[] {
  const words = query.text.toLowerCase().split(/\s+/).filter(Boolean)
  const found: JobRow[] = []
  for (const row of rows) if (matches(row, query, words)) found.push(row)
  return found.sort(order(query, now))
}

function matches(row: JobRow, query: ListQuery, words: string[]): boolean {
  if (query.queue && row.queue !== query.queue) return false
  if (query.status === 'live' ? row.ended !== undefined : query.status && row.status !== query.status) return false
  if (words.length === 0) return true
  const text = `${row.id} ${row.name} ${row.user} ${row.queue}`.toLowerCase()
  return words.every((word) => text.includes(word))
}

function order(query: ListQuery, now: number): (a: JobRow, b: JobRow) => number {
  const sign = query.descending ? -1 : 1
  const compare = comparison(query.sort, now)
  return (a, b) => sign * compare(a, b) || b.id - a.id
}

function comparison(key: SortKey, now: number): (a: JobRow, b: JobRow) => number {
  switch (key) {
    case 'id': return (a, b) => a.id - b.id
    case 'gpus': return (a, b) => a.gpus - b.gpus
    case 'cost': return (a, b) => costNow(a, now) - costNow(b, now)
    case 'time': return (a, b) => (runSeconds(a, now) ?? -1) - (runSeconds(b, now) ?? -1)
    case 'status': return (a, b) => STATUS_ORDER.indexOf(a.status) - STATUS_ORDER.indexOf(b.status)
    default: return (a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0)
  }
}
