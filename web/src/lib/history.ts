// Readings since the page was opened, in columns as charts take them.

export class History {
  readonly times: number[] = []
  readonly columns: (number | null)[][]
  readonly #most: number

  constructor(columns: number, most = 720) {
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
}
