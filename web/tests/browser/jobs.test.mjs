// A user's work in the dashboard of a real server.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { launch, login, open, SIZES, up } from './harness.mjs'

let server
let browser
before(async () => {
  ;[server, browser] = await Promise.all([up(4), launch()])
})
after(async () => {
  await browser?.close()
  await server?.stop()
})

const COUNTING = 'for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.4; done; sleep 60'

for (const [name, size] of Object.entries(SIZES)) {
  test(`the link logs in, and a job is submitted, watched and cancelled on a ${name}`, async () => {
    const { page, context, problems } = await open(browser, server, size)
    if (name === 'desktop') {
      await page.goto(server.link)
      await page.waitForURL(`${server.url}/`)
      await page.getByRole('heading', { name: 'Overview' }).waitFor()
    } else {
      await server.user('tess')
      await login(page, server, 'tess')
    }
    await page.locator('[data-connection=live]').waitFor()
    await page.getByRole('link', { name: 'Submit a job' }).click()
    await page.getByLabel('Name', { exact: true }).fill(`watched-${name}`)
    await page.getByLabel('Command').fill(`sh -c '${COUNTING}'`)
    await page.getByRole('button', { name: 'What if?' }).click()
    await page.getByTestId('what-if').getByText('per hour').waitFor()
    await page.getByRole('button', { name: 'Submit' }).click()
    await page.getByRole('heading', { name: `watched-${name}` }).waitFor()
    const log = page.getByTestId('log')
    await log.getByText('line 1').waitFor()
    assert.ok(!(await log.textContent()).includes('line 9'), 'lines arrive while the job runs')
    await log.getByText('line 9').waitFor()
    await page.getByRole('button', { name: 'Cancel job' }).click()
    await page.getByRole('group', { name: 'Stop this job?' }).getByRole('button', { name: 'Cancel job' }).click()
    await page.getByText('cancelled', { exact: true }).first().waitFor()
    await page.getByRole('button', { name: 'Run again' }).click()
    await page.waitForURL((url) => url.pathname.startsWith('/ui/workloads/'))
    await page.locator('.status.running').waitFor()
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)
    assert.equal(wide, false, 'no horizontal scroll bar')
    assert.deepEqual(problems, [])
    await context.close()
  })
}

test('a user sees neither the jobs of others nor the pages of admins', async () => {
  const job = await server.submit('private-to-admin', ['sleep', '60'], { gpu_count: 0 })
  await server.user('bob')
  const { page, context, problems } = await open(browser, server)
  await login(page, server, 'bob')
  assert.equal(await page.getByRole('link', { name: 'Users' }).count(), 0)
  for (const path of ['/', '/ui/workloads', '/ui/gpus', `/ui/workloads/${job.id}`, '/ui/usage', '/ui/waste']) {
    await page.goto(server.url + path)
    await page.getByRole('heading').first().waitFor()
    await page.waitForTimeout(400)
    assert.ok(!(await page.content()).includes('private-to-admin'), path)
  }
  await page.goto(`${server.url}/ui/workloads/${job.id}`)
  await page.getByRole('alert').waitFor()
  await page.goto(`${server.url}/ui/users`)
  await page.getByText('has no access to this page').waitFor()
  await page.goto(`${server.url}/ui/workloads`)
  await page.getByText('No job yet').waitFor()
  assert.deepEqual(problems, [])
  await context.close()
})

test('markup and terminal escapes in names and output are text', async () => {
  // The server rejects control characters in names; `visible` has unit tests for them.
  const name = `<img src=x onerror=alert(1)>\u202e{{7*7}}`
  const output = `printf '<script>alert(2)</script>\\033[31mred\\033]0;title\\007\\n'`
  const job = await server.submit(name, ['sh', '-c', output])
  const { page, context, problems } = await open(browser, server)
  await server.user('eve', 'viewer')
  await login(page, server, 'eve')
  let alerts = 0
  page.on('dialog', (dialog) => { alerts++; void dialog.dismiss() })
  for (const path of ['/', '/ui/workloads', `/ui/workloads/${job.id}`]) {
    await page.goto(server.url + path)
    await page.getByText('<img src=x onerror=alert(1)>⟨U+202E⟩{{7*7}}').first().waitFor()
  }
  await page.getByTestId('log').getByText('<script>alert(2)</script>␛[31mred␛]0;title␇').waitFor()
  assert.equal(await page.locator('main img').count(), 0)
  assert.equal(alerts, 0)
  assert.deepEqual(problems, [])
  await context.close()
})

test('a pending job lights the nodes near it and says what is missing', async () => {
  const { page, context, problems } = await open(browser, server)
  await server.submit('too-wide', ['sleep', '60'], { gpu_count: 64 })
  await server.user('viv', 'viewer')
  await login(page, server, 'viv')
  await page.getByRole('link', { name: 'too-wide' }).focus()
  await page.getByTestId('missing').getByText(/GPU/).first().waitFor()
  await page.locator('.gpu.dim, .gpu.lit').first().waitFor()
  assert.deepEqual(problems, [])
  await context.close()
})

test('an expired session renews itself, and an ended one asks for a login', async () => {
  const { page, context } = await open(browser, server)
  await server.user('kim')
  await login(page, server, 'kim')
  await context.clearCookies({ name: /_access_/ })
  await page.reload()
  await page.locator('[data-connection=live]').waitFor()
  await context.clearCookies()
  await page.getByRole('link', { name: 'Usage' }).click()
  await page.getByText('The session has ended').waitFor()
  await page.getByLabel('Password').waitFor()
  await context.close()
})

test('the page survives a restart of the server and shows what happened meanwhile', async () => {
  const { page, context } = await open(browser, server)
  await server.user('ann')
  await login(page, server, 'ann')
  await page.goto(`${server.url}/ui/workloads`)
  await page.getByText('No job yet').waitFor()
  await page.locator('[data-connection=live]').waitFor()
  await server.end()
  await page.locator('[data-connection=lost]').waitFor()
  await server.start()
  await page.locator('[data-connection=live]').waitFor({ timeout: 30_000 })
  const tokens = await server.call('POST', '/auth/login', { username: 'ann', password: 'correct horse battery' })
  await server.submit('after-restart', ['sleep', '60'], { gpu_count: 0 }, tokens.access_token)
  await page.getByRole('link', { name: 'after-restart' }).waitFor()
  await context.close()
})
