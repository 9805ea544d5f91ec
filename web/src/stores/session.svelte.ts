// The signed-in user and the server.
import { call, whenSignedOut } from '../api/client.ts'
import { cause, Failure } from '../api/failure.ts'
import type { User, Version } from '../api/types.ts'

class Session {
  user = $state.raw<User>()
  version = $state.raw<Version>()
  /** `checking` until the first answer. */
  state = $state<'checking' | 'signed-in' | 'signed-out' | 'unreachable'>('checking')
  error = $state('')

  isAdmin = $derived(this.user?.role === 'admin')
  /** Viewers have read-only access. */
  mayWrite = $derived(this.user !== undefined && this.user.role !== 'viewer')
  /** The dashboard of a cluster: its jobs have namespaces, and neither numbers nor owners. */
  ofCluster = $derived(this.version?.login === 'token')
  seesAll = $derived(this.user?.role === 'admin' || this.user?.role === 'viewer')

  constructor() {
    whenSignedOut(() => {
      if (this.state === 'signed-in') this.error = 'The session has ended. Log in again.'
      this.state = 'signed-out'
    })
  }

  /** A cluster lacks some pages. */
  has(page: string): boolean {
    return this.version?.pages?.includes(page) ?? true
  }

  async start(): Promise<void> {
    try {
      // The login page depends on it, so it comes first.
      this.version = await call('get', '/version')
      this.user = await call('get', '/auth/me')
      this.state = 'signed-in'
    } catch (error) {
      const rejected = error instanceof Failure && error.status === 401
      this.state = rejected ? 'signed-out' : 'unreachable'
      if (!rejected) this.error = cause(error)
    }
  }

  async register(username: string, password: string, invite: string): Promise<void> {
    await call('post', '/auth/register', { body: { username, password, invite } })
  }

  async login(username: string, password: string): Promise<void> {
    await call('post', '/auth/login', { body: { username, password, cookie: true } })
    location.reload()
  }

  async loginWithToken(token: string): Promise<void> {
    const headers = { 'Content-Type': 'application/json' }
    const response = await fetch('/auth/login', { method: 'POST', headers, body: JSON.stringify({ token }) })
    if (!response.ok) throw await Failure.of(response)
    location.reload()
  }

  async logout(): Promise<void> {
    await call('post', '/auth/logout', { body: {} })
    location.assign('/')
  }
}

export const session = new Session()
