// Typed client of the REST API. Paths, parameters and bodies come from docs/openapi.json.
import { Failure } from './failure.ts'
import type { paths } from './schema'

type Method = 'get' | 'post' | 'put' | 'delete'
type Operation<P extends keyof paths, M extends Method> = Exclude<paths[P][M], undefined>

type QueryOf<O> = O extends { parameters: { query?: infer Q } } ? Q : never
type PathOf<O> = O extends { parameters: { path: infer R } } ? R : undefined
type BodyOf<O> = O extends { requestBody?: { content: { 'application/json': infer B } } } ? B : undefined
type AnswerOf<O> = O extends { responses: infer R }
  ? Success<R[keyof R & (200 | 201)]>
  : undefined
type Success<R> = R extends { content: { 'application/json': infer A } } ? A : undefined

export interface Request<O> {
  path?: PathOf<O>
  query?: QueryOf<O>
  // The server fills absent fields with their defaults.
  body?: Partial<BodyOf<O>>
  signal?: AbortSignal
}

export interface Page<T> {
  rows: T
  total: number
  /** `before` of the next page. */
  next: number | undefined
}

/** Called when neither the access token nor the refresh token is valid. */
let onSignedOut: () => void = () => {}
export function whenSignedOut(handler: () => void): void {
  onSignedOut = handler
}

export async function call<P extends keyof paths, M extends Method>(
  method: M,
  path: P,
  request: Request<Operation<P, M>> = {},
): Promise<AnswerOf<Operation<P, M>>> {
  const response = await send(method, path, request)
  if (response.status === 204) return undefined as AnswerOf<Operation<P, M>>
  return (await response.json()) as AnswerOf<Operation<P, M>>
}

/** A list with its headers. */
export async function page<P extends keyof paths>(
  path: P,
  request: Request<Operation<P, 'get'>> = {},
): Promise<Page<AnswerOf<Operation<P, 'get'>>>> {
  const response = await send('get', path, request)
  const next = response.headers.get('x-next-before')
  return {
    rows: (await response.json()) as AnswerOf<Operation<P, 'get'>>,
    total: Number(response.headers.get('x-total-count') ?? 0),
    next: next === null ? undefined : Number(next),
  }
}

/** Response with a status below 400; renews the session once if it expired. */
export async function send<P extends keyof paths, M extends Method>(
  method: M,
  path: P,
  request: Request<Operation<P, M>> = {},
): Promise<Response> {
  const target = address(path, request.path, request.query)
  let response = await attempt(method, target, request)
  // A wrong password is also a 401, and no session to renew.
  const renewable = response.status === 401 && path !== '/auth/login'
  if (renewable && (await renew())) response = await attempt(method, target, request)
  if (response.status === 401 && renewable) onSignedOut()
  if (!response.ok) throw await Failure.of(response)
  return response
}

/** Address of a call, for links and streams. */
export function address(path: string, segments?: unknown, query?: unknown): string {
  const parts = Object.entries((segments ?? {}) as Record<string, unknown>)
  const filled = parts.reduce((text, [name, value]) => text.replace(`{${name}}`, encodeURIComponent(String(value))), path)
  const given = Object.entries((query ?? {}) as Record<string, unknown>).filter(([, value]) => value != null && value !== '')
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
  return search ? `${filled}?${search}` : filled
}

let renewal: Promise<boolean> | undefined

/** Exchanges the refresh cookie for a new session. Concurrent calls share one request: a token is valid once. */
export function renew(): Promise<boolean> {
  renewal ??= navigatorLock(async () => {
    const response = await fetch('/auth/refresh', { method: 'POST' })
    return response.ok
  })
    .catch(() => false)
    .finally(() => (renewal = undefined))
  return renewal
}

/** Tabs share the cookie, so only one of them renews it at a time. */
async function navigatorLock(task: () => Promise<boolean>): Promise<boolean> {
  if (!navigator.locks) return task()
  return navigator.locks.request('agentaflow-refresh', task)
}

async function attempt(method: string, target: string, request: { body?: unknown; signal?: AbortSignal }): Promise<Response> {
  const json = request.body === undefined ? {} : { body: JSON.stringify(request.body), headers: { 'Content-Type': 'application/json' } }
  try {
    return await fetch(target, { method: method.toUpperCase(), ...json, ...(request.signal ? { signal: request.signal } : {}) })
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error
    throw Failure.unreachable()
  }
}
