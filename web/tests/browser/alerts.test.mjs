// Alerts arrive without a reload, in front of the right people; admins silence them and test the sinks.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { after, before, test } from 'node:test'
import { launch, login, open, SIZES, up } from './harness.mjs'

/** Every GPU that a job holds counts as idle, at once. */
const RULES = (url) => `
interval = "200ms"
group_wait = "0s"
[rules.gpu_idle]
warning = 1000
for = "0s"
keep = "0s"
[rules.disk]
enabled = false
[rules.utilization]
enabled = false
[[sink]]
name = "hook"
type = "webhook"
url_env = "${url}"
`

const MARKUP = '<img src=x onerror=alert(1)> \u001b[31m'

let server
let browser
let hook
const received = []
before(async () => {
  hook = createServer((request, response) => {
    let body = ''
    request.on('data', (data) => (body += data))
    request.on('end', () => {
      received.push(JSON.parse(body))
      response.end()
    })
  })
  await new Promise((resolve) => hook.listen(0, '127.0.0.1', resolve))
  process.env.AGENTAFLOW_TEST_HOOK = `http://127.0.0.1:${hook.address().port}/`
  ;[server, browser] = await Promise.all([up(4, RULES('AGENTAFLOW_TEST_HOOK')), launch()])
  await server.user('ada', 'admin')
})
after(async () => {
  await browser?.close()
  await server?.stop()
  hook?.close()
})

for (const [name, size] of Object.entries(SIZES)) {
  test(`an alert arrives on the overview and resolves, on a ${name}`, async () => {
    const { page, context, problems } = await open(browser, server, size)
    await login(page, server, 'ada')
    const panel = page.locator('section', { has: page.getByRole('heading', { name: 'Alerts', exact: true }) })
    await panel.getByText('No alert fires.').waitFor()
    const job = await server.submit(`idle-${name}`, ['sleep', '300'])
    await panel.getByText(`Job ${job.id} holds GPU`).waitFor()
    await page.goto(`${server.url}/ui/alerts`)
    await page.getByText(`Job ${job.id} holds GPU`).first().waitFor()
    await server.call('POST', `/gpu-workers/jobs/${job.id}/cancel`)
    await page.getByRole('heading', { name: 'Resolved in the last 24 hours' }).waitFor()
    await page.getByText('No alert fires.').waitFor()
    assert.deepEqual(problems, [])
    await context.close()
  })
}

test('an admin silences an alert, ends the silence, and sends a test message', async () => {
  const { page, context, problems } = await open(browser, server)
  const job = await server.submit('held', ['sleep', '300'])
  await login(page, server, 'ada')
  await page.goto(`${server.url}/ui/alerts`)
  const row = page.locator('tr', { hasText: `Job ${job.id} holds GPU` })
  await row.getByRole('button', { name: 'Silence' }).click()
  await page.getByLabel('Comment').fill(MARKUP)
  await page.locator('form').getByRole('button', { name: 'Silence' }).click()
  await row.getByText('silenced').waitFor()
  // Markup and escapes are text.
  await page.getByText('<img src=x onerror=alert(1)>').waitFor()
  assert.equal(await page.locator('main img').count(), 0)
  const silence = page.locator('tr', { hasText: 'alert=' })
  await silence.getByRole('button', { name: 'End' }).click()
  await silence.getByRole('button', { name: 'End' }).first().click()
  await page.getByText('No silence.').waitFor()
  await page.getByRole('button', { name: 'Send a test message' }).click()
  await page.getByText('hook: delivered').waitFor()
  assert.ok(received.some((message) => message.kind === 'test'))
  await server.call('POST', `/gpu-workers/jobs/${job.id}/cancel`)
  assert.deepEqual(problems, [])
  await context.close()
})

test('a user sees alerts about own jobs only, and no sinks', async () => {
  const ana = await server.user('ana')
  await server.user('ben')
  const job = await server.submit('mine', ['sleep', '300'], {}, ana)
  for (const [user, sees] of [['ana', true], ['ben', false]]) {
    const { page, context, problems } = await open(browser, server, SIZES.phone)
    await login(page, server, user)
    await page.goto(`${server.url}/ui/alerts`)
    if (sees) await page.getByText(`Job ${job.id} holds GPU`).waitFor()
    else await page.getByText('No alert fires.').waitFor()
    assert.equal(await page.getByRole('heading', { name: 'Sinks' }).count(), 0)
    assert.equal(await page.getByRole('button', { name: 'Silence' }).count(), 0)
    assert.deepEqual(problems, [])
    await context.close()
  }
  await server.call('POST', `/gpu-workers/jobs/${job.id}/cancel`)
})
