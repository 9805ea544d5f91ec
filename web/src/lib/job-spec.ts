// Requests of jobs: run again, and the form.
import type { Job, JobCreate } from '../api/types.ts'

const FIELDS = [
  'job_name', 'job_type', 'docker_image', 'docker_tag', 'docker_registry', 'job_config', 'input_data', 'gpu_memory_required',
  'cpu_cores_required', 'memory_required', 'storage_required', 'endpoint_id', 'gpu_count', 'gpu_type', 'gpu_fraction', 'mig_profile',
  'exclusive', 'replicas', 'priority', 'queue', 'command', 'env', 'timeout_seconds', 'max_retries', 'volumes', 'runtime',
  'on_node_lost', 'estimated_duration_seconds', 'preemptible', 'stop_grace_seconds', 'shm_size', 'read_only', 'working_dir',
] as const satisfies readonly (keyof JobCreate)[]

// A new field of jobs is reported here: add it to the list, or to the secrets.
type Listed = (typeof FIELDS)[number] | 'docker_username' | 'docker_password' | 'secret_env'
type Complete<Missing> = [Missing] extends [never] ? true : { missing: Missing }
true satisfies Complete<Exclude<keyof JobCreate, Listed>>

/** The request that submitted a job, without its secrets: the server never returns them. */
export function requestOf(job: Job): Partial<JobCreate> {
  const all = FIELDS.map((name) => [name, job[name]] as const)
  return Object.fromEntries(all.filter(([, value]) => value != null)) as Partial<JobCreate>
}

/** Reason for which a job cannot run again as it was. */
export function missingSecrets(job: Job): string {
  const names = [...job.secret_env_names]
  if (job.docker_username) names.push('registry password')
  return names.length > 0 ? `The job has secrets, which the server does not return: ${names.join(', ')}. Submit it again with the command line.` : ''
}

/** Splits a command line into words, with quotes and backslashes as a shell has them. */
export function words(line: string): string[] {
  const found: string[] = []
  let word: string | undefined
  let quote = ''
  for (let at = 0; at < line.length; at++) {
    const c = line.charAt(at)
    if (quote) {
      if (c === quote) quote = ''
      else if (c === '\\' && quote === '"' && at + 1 < line.length) word += line.charAt(++at)
      else word += c
    } else if (c === "'" || c === '"') {
      quote = c
      word ??= ''
    } else if (c === '\\' && at + 1 < line.length) word = (word ?? '') + line.charAt(++at)
    else if (/\s/.test(c)) {
      if (word !== undefined) found.push(word)
      word = undefined
    } else word = (word ?? '') + c
  }
  if (word !== undefined) found.push(word)
  return found
}

/** Words as one line that `words` splits again. */
export function line(command: readonly string[]): string {
  return command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(' ')
}
