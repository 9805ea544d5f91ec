// Light, dark, or as the system has it. The choice stays in this browser.
export type Theme = 'auto' | 'light' | 'dark'

const KEY = 'agentaflow-theme'
const ORDER: Theme[] = ['auto', 'light', 'dark']
const system = matchMedia('(prefers-color-scheme: dark)')

class ThemeStore {
  choice = $state<Theme>(stored())
  #systemDark = $state(system.matches)
  dark = $derived(this.choice === 'dark' || (this.choice === 'auto' && this.#systemDark))

  constructor() {
    system.addEventListener('change', () => (this.#systemDark = system.matches))
    this.#apply()
  }

  next(): void {
    this.choice = ORDER[(ORDER.indexOf(this.choice) + 1) % ORDER.length] ?? 'auto'
    try {
      localStorage.setItem(KEY, this.choice)
    } catch {
      // Without storage the choice lasts until the page is closed.
    }
    this.#apply()
  }

  #apply(): void {
    const root = document.documentElement
    if (this.choice === 'auto') root.removeAttribute('data-theme')
    else root.dataset.theme = this.choice
  }
}

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY)
    return ORDER.find((theme) => theme === value) ?? 'auto'
  } catch {
    return 'auto'
  }
}

export const theme = new ThemeStore()
