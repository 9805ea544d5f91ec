// Data of one page: loaded, failed or still loading.
import { cause } from '../api/failure.ts'

export class Resource<T> {
  data = $state.raw<T>()
  error = $state('')
  loading = $state(true)
  readonly #read: () => Promise<T>
  #generation = 0

  constructor(read: () => Promise<T>) {
    this.#read = read
    void this.load()
  }

  async load(): Promise<void> {
    const generation = ++this.#generation
    try {
      const data = await this.#read()
      if (generation !== this.#generation) return
      this.data = data
      this.error = ''
    } catch (error) {
      if (generation === this.#generation) this.error = cause(error)
    } finally {
      if (generation === this.#generation) this.loading = false
    }
  }
}

/** An action of a button: runs once at a time and keeps its error. */
export class Action {
  busy = $state(false)
  error = $state('')

  async run(task: () => Promise<unknown>): Promise<boolean> {
    if (this.busy) return false
    this.busy = true
    this.error = ''
    try {
      await task()
      return true
    } catch (error) {
      this.error = cause(error)
      return false
    } finally {
      this.busy = false
    }
  }
}
