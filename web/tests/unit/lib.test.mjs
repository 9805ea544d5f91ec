// Functions without a page. Vite compiles them, since Node 20 reads no TypeScript.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { createServer } from 'vite'

let vite
let lib
before(async () => {
  vite = await createServer({ configFile: false, root: fileURLToPath(new URL('../..', import.meta.url)), appType: 'custom', logLevel: 'error', server: { middlewareMode: true, ws: false, watch: null }, optimizeDeps: { noDiscovery: true } })
  const names = ['text', 'job-spec', 'job-row', 'job-list', 'history', 'gpu', 'format']
  const modules = await Promise.all(names.map((name) => vite.ssrLoadModule(`/src/lib/${name}.ts`)))
  lib = Object.assign({}, ...modules)
})
after(() => vite?.close())

test('control characters and direction overrides become visible', () => {
  assert.equal(lib.visible('a\u001b[31mb\u0007\u009b\u202e\u007f\tc\n'), 'a␛[31mb␇⟨U+009B⟩⟨U+202E⟩␡\tc\n')
  assert.equal(lib.label('two\nlines'), 'two␊lines')
  assert.equal(lib.label('', 'job 7'), 'job 7')
})

test('a carriage return rewrites a line, as progress bars do', () => {
  assert.equal(lib.outputLine('10 %\r50 %\r100 %'), '100 %')
  assert.equal(lib.outputLine('windows\r'), 'windows')
})

test('a command line splits as in a shell and joins again', () => {
  const command = ['python', '-c', `print("it's", 1)`, '', 'a b', '--x=1']
  assert.deepEqual(lib.words(lib.line(command)), command)
  assert.deepEqual(lib.words(`  sh -c 'echo "hi"' "a\\"b" c\\ d `), ['sh', '-c', 'echo "hi"', 'a"b', 'c d'])
})

const job = (more = {}) => ({
  id: 1, user_id: 1, username: 'ada', job_name: 'train', status: 'pending', cost: 0, price_per_hour: 2, created_at: '2026-01-01T00:00:00Z', updated_at: '2026-01-01T00:00:00Z',
  attempt: 0, retries_used: 0, secret_env_names: [], cancel_requested: false, simulated: false, tasks: [], gpu_count: 2, replicas: 3, ...more,
})
const event = (kind, at = '2026-01-01T00:01:00Z') => ({ seq: 1, at, kind, message: 'no room', job_id: 1 })

test('events move a job through its states', () => {
  let row = lib.rowOf(job(), 0)
  assert.equal(row.gpus, 6)
  row = lib.rowAfter(row, event('Waiting'))
  assert.deepEqual([row.status, row.wait], ['pending', 'no room'])
  row = lib.rowAfter(row, event('Scheduled'))
  row = lib.rowAfter(row, event('Started'))
  assert.deepEqual([row.status, row.wait, lib.runSeconds(row, Date.parse('2026-01-01T00:02:00Z'))], ['running', '', 60])
  assert.equal(lib.rowAfter(row, event('CancelRequested')).stopping, true)
  assert.equal(lib.rowAfter(row, event('SimulatedGpu')), row)
  const ended = lib.rowAfter(row, event('Failed', '2026-01-01T00:03:00Z'))
  assert.deepEqual([ended.status, lib.runSeconds(ended, Infinity)], ['failed', 120])
  assert.equal(lib.rowAfter(ended, event('Requeued')).status, 'pending')
})

test('the cost of a running job grows, that of an ended one stays', () => {
  const row = { ...lib.rowOf(job({ status: 'running', cost: 1 }), 0), costAt: 0 }
  assert.equal(lib.costNow(row, 1_800_000), 2)
  assert.equal(lib.costNow({ ...row, status: 'completed' }, 1_800_000), 1)
})

test('the list filters by words, status and queue, and sorts', () => {
  const rows = [lib.rowOf(job(), 0), lib.rowOf(job({ id: 2, job_name: 'eval', status: 'completed', completed_at: '2026-01-01T01:00:00Z', queue: 'team', gpu_count: 1, replicas: null }), 0)]
  const query = { text: '', status: '', queue: '', sort: 'id', descending: true }
  const ids = (more) => lib.selected(rows, { ...query, ...more }, 0).map((row) => row.id)
  assert.deepEqual(ids({}), [2, 1])
  assert.deepEqual(ids({ text: 'ada TRAIN' }), [1])
  assert.deepEqual(ids({ status: 'live' }), [1])
  assert.deepEqual(ids({ queue: 'team' }), [2])
  assert.deepEqual(ids({ sort: 'gpus' }), [1, 2])
  assert.deepEqual(ids({ sort: 'name', descending: false }), [2, 1])
})

test('a request for another run has the fields of the job and no state', () => {
  const request = lib.requestOf(job({ env: { A: '1' }, runtime: 'process' }))
  assert.deepEqual(request, { job_name: 'train', gpu_count: 2, replicas: 3, env: { A: '1' }, runtime: 'process' })
  assert.match(lib.missingSecrets(job({ secret_env_names: ['TOKEN'] })), /TOKEN/)
  assert.equal(lib.missingSecrets(job()), '')
})

test('a curve begins with the history of the server and keeps its own readings', () => {
  const series = { name: '0', columns: [{ name: 'memory_mib', values: [1024, null, 3072] }] }
  const curves = { start: '2026-11-15T06:00:00.000Z', step_seconds: 15, series: [series] }
  const start = Date.parse(curves.start) / 1000
  assert.deepEqual(lib.timesOf(curves), [start + 7.5, start + 22.5, start + 37.5])
  assert.deepEqual(lib.column(series, 'memory_mib', 1024), [1, null, 3])
  assert.equal(lib.column(series, 'power_watts'), undefined)
  const open = { ...curves, series: [{ name: '', columns: [{ name: 'a', values: [null, 1, null, null] }, { name: 'b', values: [2, null, null, null] }] }] }
  assert.deepEqual(lib.withoutEmptyEnd(open).series[0].columns.map((column) => column.values), [[null, 1], [2, null]])
  assert.equal(lib.timesOf(lib.withoutEmptyEnd(open)).length, 2)
  const history = new lib.History(2, 4)
  history.push((start + 30) * 1000, [7, 8])
  history.prepend(lib.timesOf(curves), [lib.column(series, 'memory_mib', 1024), undefined])
  assert.deepEqual(history.times, [start + 7.5, start + 22.5, start + 30])
  assert.deepEqual(history.columns, [[1, null, 7], [null, null, 8]])
  const full = new lib.History(1, 3)
  for (const at of [40, 50]) full.push((start + at) * 1000, [at])
  full.prepend(lib.timesOf(curves), [[1, 2, 3]])
  assert.deepEqual([full.times, full.columns], [[start + 37.5, start + 40, start + 50], [[3, 40, 50]]])
})

test('the history of a curve is bounded', () => {
  const history = new lib.History(2, 3)
  for (let at = 1; at <= 5; at++) history.push(at * 1000, [at, undefined])
  assert.deepEqual([history.times, history.columns], [[3, 4, 5], [[3, 4, 5], [null, null, null]]])
})

test('the state of a GPU follows its node, its health and its free memory', () => {
  const instance = { gpu_index: 0, gpu_uuid: 'GPU-1', gpu_memory: 100, gpu_memory_available: 100, status: 'available', throttled: [] }
  const node = (more, gpu = {}) => lib.gpusOf({ node_id: 'n', node_name: 'n', status: 'active', reachable: true, gpu_count: 1, gpu_instances: [{ ...instance, ...gpu }], ...more })[0].state
  assert.equal(node({}), 'free')
  assert.equal(node({}, { gpu_memory_available: 0, status: 'busy' }), 'used')
  assert.equal(node({}, { gpu_memory_available: 40, status: 'busy' }), 'shared')
  assert.equal(node({ cordoned_gpus: ['GPU-1'] }), 'cordoned')
  assert.equal(node({ draining_gpus: ['0'] }), 'draining')
  assert.equal(node({}, { status: 'error' }), 'broken')
  assert.equal(node({ reachable: false }), 'offline')
  assert.equal(lib.gpusOf({ node_id: 'n', node_name: 'n', gpu_count: 2, gpu_memory_total: 80 }).length, 2)
})

test('a GPU with room, model and memory could serve a job', () => {
  const gpu = { state: 'free', model: 'NVIDIA H100', memory: 100, memoryUsed: 0 }
  const job = { gpus: 1, gpuType: '', gpuMemory: 0 }
  assert.equal(lib.couldServe(gpu, job), true)
  assert.equal(lib.couldServe(gpu, { ...job, gpuType: 'h100', gpuMemory: 80 }), true)
  assert.equal(lib.couldServe(gpu, { ...job, gpuType: 'NVIDIA A100' }), false)
  assert.equal(lib.couldServe(gpu, { ...job, gpuMemory: 101 }), false)
  assert.equal(lib.couldServe({ ...gpu, state: 'used' }, job), false)
  assert.equal(lib.couldServe({ ...gpu, state: 'shared' }, job), false)
  assert.equal(lib.couldServe({ ...gpu, state: 'shared' }, { ...job, gpus: 0.5 }), true)
})

test('numbers and times read well', () => {
  assert.deepEqual([0, 59, 60, 3661, 200_000].map((seconds) => lib.duration(seconds)), ['0 s', '59 s', '1 min', '1 h 1 min', '2 d 7 h'])
  assert.deepEqual([512, 40960, 3 * 1024 * 1024].map((mib) => lib.memory(mib)), ['512 MiB', '40 GiB', '3 TiB'])
  assert.deepEqual([0, 0.0014, 1234.5, -2].map((value) => lib.dollars(value)), ['$0.00', '$0.0014', '$1,234.50', '−$2.00'])
})
