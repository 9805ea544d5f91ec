// Periods of curves.
export type Period = 'hour' | 'day' | 'month'

export const PERIODS: Record<Period, { text: string; seconds: number }> = {
  hour: { text: 'Last hour', seconds: 3600 },
  day: { text: 'Last 24 hours', seconds: 86_400 },
  month: { text: 'Last 30 days', seconds: 30 * 86_400 },
}

/** Readings of a column: more than a chart has pixels show nothing more. */
const POINTS = 480

export function queryOf(period: Period): { from: string; points: number } {
  return { from: new Date(Date.now() - PERIODS[period].seconds * 1000).toISOString(), points: POINTS }
}
