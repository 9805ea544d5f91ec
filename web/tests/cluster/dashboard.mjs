// The dashboard of a cluster in a browser: `node dashboard.mjs URL OWN FOREIGN NEXT`, with the token in TOKEN. OWN and FOREIGN
// are jobs that the token may and may not list; the caller creates NEXT when this program prints `watching`. The test of
// the cluster starts it.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { launch, SIZES } from '../browser/harness.mjs'

const [url, own, foreign, next] = process.argv.slice(2)
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const PAGES = ['Overview', 'Workloads', 'GPUs', 'Nodes', 'Queues']
const troubles = []

async function serious(page) {
  // The page forbids scripts of others; the debugger may evaluate them.
  await page.evaluate(AXE)
  const found = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }))
  return found.violations.filter((one) => one.impact === 'serious' || one.impact === 'critical').map((one) => `${one.id}: ${one.nodes[0].html}`)
}

async function screenshot(page, name) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png` })
}

async function watch(browser) {
  const context = await browser.newContext({ viewport: SIZES.desktop, ignoreHTTPSErrors: true })
  const page = await context.newPage()
  page.on('pageerror', (error) => troubles.push(String(error)))
  page.on('console', (message) => /Content Security Policy|Trusted/.test(message.text()) && troubles.push(message.text()))
  page.on('request', (request) => !request.url().startsWith(url) && troubles.push(`request to ${request.url()}`))
  return { context, page }
}

async function login(page) {
  await page.goto(url)
  const token = page.getByLabel('Token')
  await token.fill('wrong')
  await page.getByRole('button', { name: 'Log in' }).click()
  await page.getByText('does not accept this token').waitFor()
  assert.deepEqual(await serious(page), [], 'login')
  await screenshot(page, 'login')
  await token.fill(process.env.TOKEN)
  await page.getByRole('button', { name: 'Log in' }).click()
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
}

async function check(page, context) {
  await login(page)
  const links = page.getByRole('navigation', { name: 'Pages' }).getByRole('link')
  assert.deepEqual(await links.allTextContents(), PAGES)
  const cookies = await context.cookies()
  assert.ok(cookies.every((cookie) => cookie.httpOnly && cookie.secure && cookie.sameSite === 'Strict'), JSON.stringify(cookies))
  await page.locator('[data-connection=live]').waitFor()
  await screenshot(page, 'overview')
  await page.getByRole('link', { name: 'Workloads' }).first().click()
  await page.getByRole('link', { name: own, exact: true }).waitFor()
  assert.equal(await page.getByText(foreign).count(), 0, 'a job of another namespace')
  console.log('watching')
  await page.getByRole('link', { name: next, exact: true }).waitFor({ timeout: 40_000 })
  assert.equal(await page.getByText(foreign).count(), 0, 'a job of another namespace')
  assert.deepEqual(await serious(page), [], 'workloads')
  await screenshot(page, 'workloads')
  await page.getByRole('link', { name: own, exact: true }).click()
  await page.getByRole('heading', { name: 'Placement' }).waitFor()
  assert.equal(await page.getByRole('button', { name: 'Run again' }).count(), 0)
  await screenshot(page, 'workload')
  await page.getByRole('button', { name: 'Log out' }).click()
  await page.getByLabel('Token').waitFor()
  assert.deepEqual(await context.cookies(), [])
  assert.deepEqual(troubles, [])
}

const browser = await launch()
try {
  const { context, page } = await watch(browser)
  await check(page, context)
} finally {
  await browser.close()
}
