// Every page, in light and dark, full and empty: no serious accessibility issue, and keyboard access.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { after, before, test } from 'node:test'
import { launch, login, open, SIZES, up } from './harness.mjs'

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const PAGES = ['/', '/ui/workloads', '/ui/workloads/1', '/ui/workloads/2', '/ui/workloads/999', '/ui/submit', '/ui/gpus', '/ui/nodes', '/ui/alerts', '/ui/queues', '/ui/usage', '/ui/waste', '/ui/users', '/ui/keys']

let server
let browser
before(async () => {
  ;[server, browser] = await Promise.all([up(4), launch()])
  await server.user('ada', 'admin')
})
after(async () => {
  await browser?.close()
  await server?.stop()
})

/** Serious and critical issues of WCAG 2 A and AA. */
async function issues(page) {
  // The policy of the server permits no script of the page; the browser's own protocol does.
  await page.evaluate(AXE)
  const found = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }))
  return found.violations
    .filter((violation) => violation.impact === 'serious' || violation.impact === 'critical')
    .map((violation) => `${violation.id}: ${violation.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`)
}

async function visit(page, path) {
  await page.goto(server.url + path)
  await page.getByRole('heading').first().waitFor()
  await page.waitForTimeout(700)
}

async function checkAll(size, colorScheme) {
  const { page, context, problems } = await open(browser, server, size, { colorScheme })
  await login(page, server, 'ada')
  for (const path of PAGES) {
    await visit(page, path)
    problems.push(...(await issues(page)).map((issue) => `${path}: ${issue}`))
    if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) problems.push(`${path} is wider than the screen`)
  }
  assert.deepEqual(problems, [], `${colorScheme}, ${size.width} px`)
  await context.close()
}

test('empty pages have no serious accessibility issue', () => checkAll(SIZES.desktop, 'light'))

test('full pages have none either, in dark and on a phone', async () => {
  await server.call('PUT', '/queues/research', { name: 'research', parent: 'root', guaranteed: { gpus: 2 }, limit: { gpus: 3 } })
  await server.submit('gang', ['sleep', '300'], { gpu_count: 1, replicas: 2, queue: 'research' })
  await server.submit('waits', ['sleep', '300'], { gpu_count: 3 })
  await server.submit('quick', ['echo', 'done'])
  await server.submit('broken', ['sh', '-c', 'echo oops; exit 3'])
  await checkAll(SIZES.desktop, 'dark')
  await checkAll(SIZES.phone, 'light')
})

test('the keyboard reaches the navigation, the filter and a job', async () => {
  const { page, context } = await open(browser, server)
  await login(page, server, 'ada')
  await page.keyboard.press('Tab')
  assert.equal(await focused(page), 'Skip to content')
  await page.getByRole('link', { name: 'Workloads' }).focus()
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'Workloads' }).waitFor()
  await page.getByLabel('Filter').focus()
  await page.keyboard.type('gang')
  await page.getByRole('link', { name: 'gang' }).waitFor()
  for (let steps = 0; steps < 20 && (await focused(page)) !== 'gang'; steps++) await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'gang' }).waitFor()
  await context.close()
})

test('an admin cordons a node and a GPU, and opens them again', async () => {
  const { page, context, problems } = await open(browser, server)
  await login(page, server, 'ada')
  const [node] = await server.call('GET', '/gpu-workers/nodes/')
  const state = async () => (await server.call('GET', `/gpu-workers/nodes/${node.node_id}`))
  await page.goto(`${server.url}/ui/nodes/${node.node_id}`)
  await page.locator('.head').getByRole('button', { name: 'Cordon' }).click()
  await page.locator('.head').getByRole('button', { name: 'Uncordon' }).waitFor()
  assert.equal((await state()).cordoned, true)
  await page.locator('.head').getByRole('button', { name: 'Uncordon' }).click()
  await page.locator('.head').getByRole('button', { name: 'Cordon', exact: true }).waitFor()
  const card = page.locator('.card').last()
  await card.getByRole('button', { name: 'Cordon' }).click()
  await card.getByRole('button', { name: 'Uncordon' }).waitFor()
  assert.equal((await state()).cordoned_gpus.length, 1)
  await card.getByRole('button', { name: 'Uncordon' }).click()
  await card.getByRole('button', { name: 'Cordon', exact: true }).waitFor()
  assert.equal(((await state()).cordoned_gpus ?? []).length, 0)
  assert.deepEqual(problems, [])
  await context.close()
})

test('an admin invites a user, who signs up, and creates a key once', async () => {
  const { page, context, problems } = await open(browser, server)
  await login(page, server, 'ada')
  await page.goto(`${server.url}/ui/users`)
  await page.getByLabel('Name', { exact: true }).fill('newcomer')
  await page.getByRole('button', { name: 'Invite' }).click()
  const invitation = await page.getByTestId('secret').textContent()
  await page.goto(`${server.url}/ui/keys`)
  await page.getByLabel('Purpose of the key').fill('laptop')
  await page.getByRole('button', { name: 'Create key' }).click()
  const key = await page.getByTestId('secret').textContent()
  assert.equal((await server.call('GET', '/auth/me', undefined, key)).username, 'ada')
  await page.reload()
  await page.getByText('laptop').waitFor()
  assert.ok(!(await page.content()).includes(key))
  await context.close()

  const second = await open(browser, server, SIZES.phone)
  await second.page.goto(server.url)
  await second.page.getByRole('button', { name: 'I have an invitation' }).click()
  await second.page.getByLabel('Name').fill('newcomer')
  await second.page.getByLabel('Password').fill('correct horse battery')
  await second.page.getByLabel('Invitation').fill(invitation)
  await second.page.getByRole('button', { name: 'Sign up' }).click()
  await second.page.getByRole('heading', { name: 'Overview' }).waitFor()
  assert.deepEqual([...problems, ...second.problems], [])
  await second.context.close()
})

function focused(page) {
  return page.evaluate(() => document.activeElement?.textContent?.trim() ?? '')
}
