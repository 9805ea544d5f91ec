// Output of a task, followed until the job ends. A lost connection continues at the last byte.
import { renew } from '../api/client.ts'
import { Failure } from '../api/failure.ts'

const RETRY_MS = 2000

export interface LogHandlers {
  text: (text: string) => void
  /** Output before the first line was left out. */
  skipped: (bytes: number) => void
  /** The stream ended: true if the job goes on, because a stream lasts at most one hour. */
  end: () => boolean
  error: (error: unknown) => void
}

export function followLog(jobId: string, task: number, tail: number, on: LogHandlers): () => void {
  const stop = new AbortController()
  void follow(jobId, task, tail, on, stop.signal)
  return () => stop.abort()
}

async function follow(jobId: string, task: number, tail: number, on: LogHandlers, signal: AbortSignal): Promise<void> {
  let offset: number | undefined
  // Bytes of one character may arrive in two pieces.
  const decoder = new TextDecoder()
  while (!signal.aborted) {
    try {
      const start = offset === undefined ? `tail=${tail}` : `offset=${offset}`
      const response = await fetch(`/gpu-workers/jobs/${jobId}/logs?follow=true&task=${task}&${start}`, { signal })
      if (response.status === 401 && (await renew())) continue
      if (!response.ok) throw await Failure.of(response)
      if (offset === undefined) {
        offset = Number(response.headers.get('x-log-offset') ?? 0)
        if (offset > 0) on.skipped(offset)
      }
      const reader = response.body!.getReader()
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        offset += piece.value.length
        on.text(decoder.decode(piece.value, { stream: true }))
      }
      if (!on.end()) return
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
    } catch (error) {
      if (signal.aborted) return
      on.error(error)
      if (error instanceof Failure && error.status < 500 && error.status !== 429) return
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
    }
  }
}
