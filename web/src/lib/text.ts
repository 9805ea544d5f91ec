// Text of jobs and users is hostile: names and output may hold control characters and direction overrides.

/** C0 and C1 controls except tab and newline, and characters that reorder or hide text. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g

/** Makes control characters visible, so that text cannot act on a terminal or disguise itself. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0)
    if (code < 0x20) return String.fromCharCode(0x2400 + code)
    if (code === 0x7f) return '␡'
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, '0')}⟩`
  })
}

/** Name in one line. */
export function label(text: string | null | undefined, otherwise = ''): string {
  const name = visible((text ?? '').replace(/[\n\t]/g, (c) => (c === '\n' ? '␊' : '␉')))
  return name === '' ? otherwise : name
}

/** Lines of output: a carriage return inside a line rewrites it, as progress bars do. */
export function outputLine(line: string): string {
  const clean = line.endsWith('\r') ? line.slice(0, -1) : line
  return visible(clean.slice(clean.lastIndexOf('\r') + 1))
}
