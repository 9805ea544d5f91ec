// Readings in columns as charts take them: history of the server, then readings of this page.
import type { Curves, Series } from '../api/types.ts'

export class History {
  readonly times: number[] = []
  readonly columns: (number | null)[][]
  readonly #most: number

  constructor(columns: number, most = 960) {
    this.columns = Array.from({ length: columns }, () => [])
    this.#most = most
  }

  /** Adds one reading of each column; `at` in milliseconds. */
  push(at: number, values: (number | null | undefined)[]): void {
    this.times.push(at / 1000)
    this.columns.forEach((column, index) => column.push(values[index] ?? null))
    if (this.times.length <= this.#most) return
    this.times.shift()
    for (const column of this.columns) column.shift()
  }

  /** Adds readings from before the first one. A missing column has none. */
  prepend(times: number[], columns: ((number | null)[] | undefined)[]): void {
    const first = this.times[0] ?? Infinity
    const until = times.findIndex((at) => at >= first)
    const count = until < 0 ? times.length : until
    const skipped = Math.max(0, count + this.times.length - this.#most)
    const missing = Array.from({ length: count }, () => null)
    this.times.unshift(...times.slice(skipped, count))
    this.columns.forEach((column, index) => column.unshift(...(columns[index] ?? missing).slice(skipped, count)))
  }
}

/** Times of curves in seconds: the middle of each interval. */
export function timesOf(curves: Curves): number[] {
  const start = Date.parse(curves.start) / 1000 + curves.step_seconds / 2
  const count = curves.series[0]?.columns[0]?.values.length ?? 0
  return Array.from({ length: count }, (_, at) => start + at * curves.step_seconds)
}

/** Values of a column, each divided by `unit`; none if the series has no such column. */
export function column(series: Series | undefined, name: string, unit = 1): (number | null)[] | undefined {
  const values = series?.columns.find((column) => column.name === name)?.values
  return values?.map((value) => (value == null ? null : value / unit))
}

/** Curves without the intervals at the end that have no reading yet. */
export function withoutEmptyEnd(curves: Curves): Curves {
  const all = curves.series.flatMap((series) => series.columns.map((column) => column.values))
  const count = Math.max(0, ...all.map((values) => values.findLastIndex((value) => value !== null) + 1))
  const cut = (series: Series): Series => ({ ...series, columns: series.columns.map((column) => ({ ...column, values: column.values.slice(0, count) })) })
  return { ...curves, series: curves.series.map(cut) }
}

/** Returns true if a column has a reading. */
export function hasReading(values: (number | null)[] | undefined): boolean {
  return values?.some((value) => value !== null) ?? false
}
