// A fake API, for the measurement of a large cluster only: 1,000 GPUs, 10,000 jobs and a steady stream of events.
// No test of behaviour uses it.
import { createReadStream, existsSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const DIST = fileURLToPath(new URL('../../dist', import.meta.url))
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' }
const NODES = 125
const GPUS = 8
const JOBS = 10_000
const LIVE = 1_500

export async function fakeApi(eventsPerSecond) {
  const cluster = new Cluster()
  const server = createServer((request, response) => cluster.answer(request, response))
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const timer = setInterval(() => cluster.emit(Math.round(eventsPerSecond / 20)), 50)
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    sent: () => cluster.seq,
    stop() {
      clearInterval(timer)
      server.closeAllConnections()
      server.close()
    },
  }
}

class Cluster {
  seq = 1
  streams = new Set()
  jobs = Array.from({ length: JOBS }, (_, at) => job(JOBS - at))

  answer(request, response) {
    const url = new URL(request.url, 'http://fake')
    const path = url.pathname.replace(/\/$/, '')
    if (path === '/events') return this.stream(response)
    const data = this.data(path, url.searchParams, response)
    if (data !== undefined) return response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(data))
    const file = join(DIST, path === '' || path.startsWith('/ui') ? 'index.html' : path)
    if (!existsSync(file) || !statSync(file).isFile()) return response.writeHead(404).end('{}')
    response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'text/plain' })
    createReadStream(file).pipe(response)
  }

  data(path, query, response) {
    const one = /^\/gpu-workers\/jobs\/(\d+)$/.exec(path)
    if (one) return this.jobs[JOBS - Number(one[1])]
    switch (path) {
      case '/auth/me': return { id: 1, username: 'admin', role: 'admin', grants: [], active: true, default_queue: 'root', balance: 0, prepaid: false, spent_this_month: 0, created_at: now() }
      case '/version': return { name: 'agentaflow', version: 'fake', started_at: now(), time: now(), notice: 'FAKE API for a measurement' }
      case '/events/past': return [{ seq: this.seq, at: now(), kind: 'Started', message: 'The job is running', job_id: 1, user_id: 1 }]
      case '/queues': return []
      case '/gpu-workers/nodes': return page(response, nodes(), query)
      case '/gpu-workers/jobs': return this.list(query, response)
      default: return undefined
    }
  }

  list(query, response) {
    const statuses = query.get('status')?.split(',')
    const before = Number(query.get('before') ?? JOBS + 1)
    const all = this.jobs.filter((job) => job.id < before && (!statuses || statuses.includes(job.status)))
    const rows = all.slice(0, Number(query.get('limit') ?? 100))
    response.setHeader('x-total-count', JOBS)
    if (rows.length < all.length) response.setHeader('x-next-before', rows.at(-1).id)
    return rows
  }

  stream(response) {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.flushHeaders()
    this.streams.add(response)
    response.on('close', () => this.streams.delete(response))
  }

  /** Live jobs change between running and pending. */
  emit(count) {
    for (let n = 0; n < count; n++) {
      const id = JOBS - Math.floor(Math.random() * LIVE)
      const kind = ['Waiting', 'Scheduled', 'Started'][this.seq % 3]
      const event = { seq: ++this.seq, at: now(), kind, message: '0/125 nodes fit: 125 lack 8 free GPUs (most free 4)', job_id: id, user_id: 1 }
      for (const stream of this.streams) stream.write(`id: ${event.seq}\ndata: ${JSON.stringify(event)}\n\n`)
    }
  }
}

function job(id) {
  const live = id > JOBS - LIVE
  const running = live && id % 3 !== 0
  const slot = id % (NODES * GPUS)
  return {
    id, user_id: 1 + (id % 40), username: `user-${id % 40}`, job_name: `train-${id}`, job_type: 'gpu_training', docker_image: 'pytorch/pytorch', docker_tag: 'latest', job_config: {}, input_data: {},
    gpu_count: 1 + (id % 8 === 0 ? 7 : 0), queue: `team-${id % 12}`, priority: id % 11, command: ['python', 'train.py', '--seed', String(id)], env: { SEED: String(id) }, volumes: [], preemptible: false, read_only: false,
    status: running ? 'running' : live ? 'pending' : 'completed', cost: id / 100, price_per_hour: 2, created_at: now(-id), updated_at: now(), attempt: 1, retries_used: 0, secret_env_names: [], cancel_requested: false, simulated: true,
    started_at: running || !live ? now(-id / 2) : null, completed_at: live ? null : now(), wait_reason: running || !live ? null : '0/125 nodes fit: 125 lack 8 free GPUs (most free 4)',
    tasks: running ? [{ task: 0, node_id: `gpu-${Math.floor(slot / GPUS)}`, node_name: `node-${Math.floor(slot / GPUS)}`, gpus: [String(slot % GPUS)], state: 'running' }] : [],
  }
}

function nodes() {
  return Array.from({ length: NODES }, (_, at) => ({
    id: at, node_id: `gpu-${at}`, node_name: `node-${at}`, gpu_count: GPUS, gpu_type: 'NVIDIA H100', gpu_memory_total: GPUS * 81920, cpu_cores: 192, memory_total: 2_000_000, runtimes: ['docker'], labels: {},
    gpu_memory_available: 0, cpu_cores_available: 64, memory_available: 900_000, storage_available: 100, status: 'active', health_status: 'healthy', current_jobs: 8, registered_at: now(), created_at: now(), updated_at: now(), price_source: 'catalogue', cordoned: false, draining: false, reachable: true, last_heartbeat: now(),
    gpu_instances: Array.from({ length: GPUS }, (_, gpu) => ({ gpu_index: gpu, gpu_uuid: `GPU-${at}-${gpu}`, gpu_name: 'NVIDIA H100', gpu_memory: 81920, gpu_memory_available: (at + gpu) % 7 === 0 ? 81920 : 0, utilization: Math.random() * 100, temperature: 60, power_usage: 500, status: (at + gpu) % 7 === 0 ? 'available' : 'busy', throttled: [] })),
  }))
}

function page(response, all, query) {
  response.setHeader('x-total-count', all.length)
  const skip = Number(query.get('skip') ?? 0)
  return all.slice(skip, skip + Number(query.get('limit') ?? 100))
}

function now(seconds = 0) {
  return new Date(Date.now() + seconds * 1000).toISOString()
}
