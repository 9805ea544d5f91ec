// Curves that begin before the page was opened, and the waste page.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { launch, login, open, SIZES, up } from './harness.mjs'

/** Two samples of the history. */
const SAMPLED_MS = 75_000

let server
let browser
let job
before(async () => {
  ;[server, browser] = await Promise.all([up(2), launch()])
  job = await server.submit('measured', ['sh', '-c', 'while :; do :; done & sleep 600'])
  await sampled(`/history/jobs/${job.id}`, 'gpu_utilization_percent')
})
after(async () => {
  await browser?.close()
  await server?.stop()
})

/** Waits for a reading of the server. */
async function sampled(path, name) {
  const end = Date.now() + SAMPLED_MS
  while (Date.now() < end) {
    const curves = await server.call('GET', path)
    const values = curves.series[0]?.columns.find((column) => column.name === name)?.values ?? []
    if (values.some((value) => value !== null)) return
    await new Promise((resolve) => setTimeout(resolve, 500))
  }
  throw new Error(`${path} has no reading of ${name}`)
}

/** Seconds between the first reading of a chart and now. */
async function age(page, title) {
  const chart = page.locator('figure', { has: page.getByRole('heading', { name: title, exact: true }) })
  await chart.locator('.u-wrap').waitFor()
  return Date.now() / 1000 - Number(await chart.getAttribute('data-first'))
}

test('curves begin before the page was opened', async () => {
  await server.user('ada', 'admin')
  const { page, context, problems } = await open(browser, server)
  await login(page, server, 'ada')
  await page.waitForTimeout(2000)
  assert.ok((await age(page, 'GPUs')) > 900, 'an hour of the cluster')
  await page.getByLabel('Period of the curves').selectOption('month')
  await page.waitForFunction(() => Date.now() / 1000 - Number(document.querySelector('figure')?.dataset.first) > 20 * 86_400)
  const [node] = await server.call('GET', '/gpu-workers/nodes/')
  await page.goto(`${server.url}/ui/nodes/${node.node_id}`)
  await page.waitForTimeout(2000)
  assert.ok((await age(page, 'GPU utilisation')) > 900, 'an hour of the node')
  await page.goto(`${server.url}/ui/workloads/${job.id}`)
  for (const title of ['CPU', 'Memory', 'GPU utilisation']) assert.ok((await age(page, title)) > 10, title)
  assert.deepEqual(problems, [])
  await context.close()
})

for (const [name, size] of Object.entries(SIZES)) {
  test(`the waste page shows the arithmetic of a running job on a ${name}`, async () => {
    const user = `tom-${name}`
    const token = await server.user(user)
    const own = await server.submit(`own-${name}`, ['sleep', '600'], { gpu_fraction: 0.25, gpu_count: undefined }, token)
    await waiting(async () => (await server.call('GET', '/billing/waste?by=job', undefined, token)).length === 1)
    const { page, context, problems } = await open(browser, server, size)
    await login(page, server, user)
    await page.getByRole('link', { name: 'Waste' }).click()
    const table = page.getByTestId('waste')
    await table.getByRole('link', { name: `own-${name}` }).waitFor()
    const text = await table.textContent()
    assert.match(text, /\$[\d.]+ × \([\d.]+ − [\d.]+\) \/ [\d.]+ GPU h = /)
    assert.ok(!text.includes('measured'), 'the job of the admin')
    await page.getByLabel('Group by').selectOption('user')
    await table.getByRole('cell', { name: user }).waitFor()
    await table.getByText('Sum of 1 job').waitFor()
    const csv = await page.getByRole('link', { name: 'CSV' }).getAttribute('href')
    assert.match(csv, /\/billing\/waste\?by=user&.*format=csv/)
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false, 'no horizontal scroll bar')
    assert.deepEqual(problems, [])
    await server.call('POST', `/gpu-workers/jobs/${own.id}/cancel`, {}, token)
    await context.close()
  })
}

async function waiting(test) {
  const end = Date.now() + 30_000
  while (!(await test())) {
    if (Date.now() > end) throw new Error('it did not happen')
    await new Promise((resolve) => setTimeout(resolve, 250))
  }
}

test('a job that has ended keeps its curves, also after a restart of the server', async () => {
  await server.call('POST', `/gpu-workers/jobs/${job.id}/cancel`, {})
  await waiting(async () => (await server.call('GET', `/gpu-workers/jobs/${job.id}`)).status === 'cancelled')
  await server.end()
  await server.start()
  await server.user('vic', 'viewer')
  const { page, context, problems } = await open(browser, server)
  await login(page, server, 'vic')
  await page.goto(`${server.url}/ui/workloads/${job.id}`)
  for (const title of ['CPU', 'Memory', 'GPU utilisation']) assert.ok((await age(page, title)) > 10, title)
  await page.goto(`${server.url}/ui/waste`)
  await page.getByTestId('waste').getByRole('link', { name: 'measured' }).waitFor()
  assert.deepEqual(problems, [])
  await context.close()
})
