// Numbers and times as text.

export function dollars(value: number | null | undefined, digits = 2): string {
  if (value == null) return '–'
  const small = value !== 0 && Math.abs(value) < 0.01
  return `${value < 0 ? '−' : ''}$${Math.abs(value).toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: small ? 4 : digits })}`
}

export function count(value: number): string {
  return value.toLocaleString('en-US')
}

/** MiB as MiB, GiB or TiB. */
export function memory(mib: number | null | undefined): string {
  if (mib == null) return '–'
  if (mib < 1024) return `${trimmed(mib)} MiB`
  return mib < 1024 * 1024 ? `${trimmed(mib / 1024)} GiB` : `${trimmed(mib / 1024 / 1024)} TiB`
}

export function percent(value: number | null | undefined): string {
  return value == null ? '–' : `${Math.round(value)} %`
}

export function trimmed(value: number, digits = 1): string {
  return value.toLocaleString('en-US', { maximumFractionDigits: digits })
}

/** `42 s`, `3 min 10 s`, `5 h 2 min`, `3 d 4 h`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return '–'
  const s = Math.max(0, Math.round(seconds))
  if (s < 60) return `${s} s`
  const minutes = Math.floor(s / 60)
  if (minutes < 60) return both(minutes, 'min', s % 60, 's')
  const hours = Math.floor(minutes / 60)
  return hours < 48 ? both(hours, 'h', minutes % 60, 'min') : both(Math.floor(hours / 24), 'd', hours % 24, 'h')
}

function both(large: number, unit: string, small: number, smallUnit: string): string {
  return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`
}

export function ago(at: string | null | undefined, now: number): string {
  if (!at) return '–'
  const seconds = (now - Date.parse(at)) / 1000
  return seconds < 2 ? 'now' : `${duration(seconds).split(' ').slice(0, 2).join(' ')} ago`
}

/** Local date and time. */
export function moment(at: string | number | null | undefined): string {
  if (at == null) return '–'
  return new Date(at).toLocaleString('sv-SE', { dateStyle: 'short', timeStyle: 'medium' })
}

export function clock(at: string | number): string {
  return new Date(at).toLocaleTimeString('sv-SE')
}
