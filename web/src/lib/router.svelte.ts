// Pages below /ui. The paths of the API are taken: /queues and /users answer with JSON.
export interface Route {
  page: string
  id: string | undefined
  query: URLSearchParams
}

function parse(): Route {
  const [, prefix, page, id] = location.pathname.split('/')
  const known = prefix === 'ui' && page ? page : prefix ? 'missing' : 'overview'
  return { page: known, id: id ? decodeURIComponent(id) : undefined, query: new URLSearchParams(location.search) }
}

class Router {
  route = $state.raw<Route>(parse())

  constructor() {
    addEventListener('popstate', () => (this.route = parse()))
    document.addEventListener('click', (event) => this.#click(event))
  }

  go(target: string): void {
    history.pushState(null, '', target)
    this.route = parse()
    scrollTo(0, 0)
    document.getElementById('main')?.focus({ preventScroll: true })
  }

  /** Records filters in the address without a new history entry. */
  replaceQuery(query: Record<string, string>): void {
    const given = Object.entries(query).filter(([, value]) => value !== '')
    const search = new URLSearchParams(given).toString()
    history.replaceState(null, '', location.pathname + (search ? `?${search}` : ''))
  }

  #click(event: MouseEvent): void {
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey
    const link = (event.target as Element | null)?.closest?.('a')
    if (!plain || !link || link.target || link.hasAttribute('download') || event.defaultPrevented) return
    const ours = link.origin === location.origin && (link.pathname === '/' || link.pathname.startsWith('/ui/'))
    if (!ours) return
    event.preventDefault()
    this.go(link.pathname + link.search)
  }
}

export const router = new Router()
