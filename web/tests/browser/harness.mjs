// Starts the program and a browser for the tests.
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { chromium } from 'playwright-core'

const PROGRAM = process.env.AGENTAFLOW_PROGRAM ?? '../target/debug/agentaflow'
const BROWSER = process.env.AGENTAFLOW_BROWSER ?? '/usr/bin/chromium'
const ARGUMENTS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run', '--disable-quic']

/** Sizes of the screen: a desktop and a phone. */
export const SIZES = { desktop: { width: 1440, height: 900 }, phone: { width: 390, height: 844 } }

export function launch() {
  return chromium.launch({ executablePath: BROWSER, args: ARGUMENTS })
}

/** `agentaflow up` with simulated GPUs in a folder of its own; `alerts` is the configuration of the alerts. */
export async function up(gpus = 4, alerts = '') {
  const folder = mkdtempSync(join(tmpdir(), 'agentaflow-dashboard-'))
  writeFileSync(join(folder, 'alerts.toml'), alerts)
  const port = await freePort()
  const server = new Server(folder, port, gpus)
  await server.start()
  return server
}

class Server {
  constructor(folder, port, gpus) {
    this.folder = folder
    this.port = port
    this.gpus = gpus
    this.url = `http://127.0.0.1:${port}`
  }

  async start() {
    const args = ['up', '--listen', `127.0.0.1:${this.port}`, '--data-dir', join(this.folder, 'data'), '--sim-gpus', String(this.gpus), '--heartbeat', '1s', '--alerts', join(this.folder, 'alerts.toml')]
    this.process = spawn(PROGRAM, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    const failed = new Promise((_, reject) => {
      this.process.once('error', reject)
      this.process.once('exit', (code) => reject(new Error(`\`up\` ended with ${code}: ${output}`)))
    })
    failed.catch(() => {})
    const ready = new Promise((resolve) => {
      const take = (data) => {
        output += data
        const link = /http:\S+\/auth\/link\?code=\S+/.exec(output)
        if (link && output.includes('Ctrl-C')) resolve(link[0])
      }
      this.process.stdout.on('data', take)
      this.process.stderr.on('data', take)
    })
    this.link = await Promise.race([ready, failed, late(60_000, () => `\`up\` printed no link: ${output}`)])
    this.token = readFileSync(join(this.folder, 'data/admin-token'), 'utf8').trim()
  }

  /** Ends the process; the data stay for the next `start`. */
  async end() {
    const running = this.process
    if (running.exitCode !== null || running.signalCode !== null) return
    const ended = new Promise((resolve) => running.once('exit', resolve))
    const kill = setTimeout(() => running.kill('SIGKILL'), 8000)
    running.kill('SIGINT')
    await ended
    clearTimeout(kill)
  }

  async stop() {
    await this.end()
    rmSync(this.folder, { recursive: true, force: true })
  }

  /** A call with a token; the admin's unless another is given. */
  async call(method, path, body, token = this.token) {
    const response = await fetch(this.url + path, {
      method,
      headers: { Authorization: `Bearer ${token}`, ...(body ? { 'Content-Type': 'application/json' } : {}) },
      ...(body ? { body: JSON.stringify(body) } : {}),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
    return text ? JSON.parse(text) : undefined
  }

  submit(name, command, more = {}, token = this.token) {
    return this.call('POST', '/gpu-workers/jobs/', { job_name: name, runtime: 'process', gpu_count: 1, command, ...more }, token)
  }

  async user(name, role = 'user') {
    await this.call('POST', '/users', { username: name, password: 'correct horse battery', role, grants: ['process'] })
    const tokens = await this.call('POST', '/auth/login', { username: name, password: 'correct horse battery' })
    return tokens.access_token
  }
}

/** A page that fails the test on an error, a request to another host or a violation of the policy. */
export async function open(browser, server, size = SIZES.desktop, options = {}) {
  const context = await browser.newContext({ viewport: size, reducedMotion: 'reduce', ...options })
  const page = await context.newPage()
  const problems = []
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`))
  page.on('console', (message) => message.type() === 'error' && !/status of (401|403|404|409|422)|ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY/.test(message.text()) && problems.push(`console: ${message.text()}`))
  page.on('request', (request) => new URL(request.url()).origin !== server.url && problems.push(`request: ${request.url()}`))
  page.setDefaultTimeout(15_000)
  return { page, context, problems }
}

/** Logs in with the form. */
export async function login(page, server, name) {
  await page.goto(server.url)
  await page.getByLabel('Name').fill(name)
  await page.getByLabel('Password').fill('correct horse battery')
  await page.getByRole('button', { name: 'Log in' }).click()
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
}

function late(ms, message) {
  return new Promise((_, reject) => setTimeout(() => reject(new Error(message())), ms).unref())
}

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', reject)
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address()
      probe.close(() => resolve(port))
    })
  })
}
