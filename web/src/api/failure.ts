import type { ErrorBody } from './types.ts'

/** A request that the server rejected, or that did not reach it (status 0). */
export class Failure extends Error {
  readonly status: number
  readonly code: string
  readonly field: string | undefined

  constructor(status: number, code: string, detail: string, field?: string) {
    super(detail)
    this.name = 'Failure'
    this.status = status
    this.code = code
    this.field = field
  }

  static unreachable(): Failure {
    return new Failure(0, 'unreachable', 'The server does not answer. The page retries on its own.')
  }

  static async of(response: Response): Promise<Failure> {
    try {
      const body = (await response.json()) as ErrorBody
      const field = (body.details as { field?: string } | undefined)?.field
      return new Failure(response.status, body.code, body.detail, field)
    } catch {
      return new Failure(response.status, 'unknown', `The server answered ${response.status}.`)
    }
  }
}

/** Text of an error for the user. */
export function cause(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
