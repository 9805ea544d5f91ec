// Jobs on each GPU, of the jobs that the user may see.
import { gpuKey } from '../lib/gpu.ts'
import type { JobRow } from '../lib/job-row.ts'
import { jobs } from './jobs.svelte.ts'

class Placement {
  byGpu = $derived.by(() => this.#index())

  #index(): Map<string, JobRow[]> {
    void jobs.version
    const index = new Map<string, JobRow[]>()
    for (const row of jobs.live()) {
      for (const place of row.places) {
        for (const gpu of place.gpus) {
          const key = gpuKey(place.node, gpu)
          const found = index.get(key)
          if (found) found.push(row)
          else index.set(key, [row])
        }
      }
    }
    return index
  }

  /** Jobs on a node, also those without a GPU. */
  onNode(nodeId: string): JobRow[] {
    void jobs.version
    return [...jobs.live()].filter((row) => row.places.some((place) => place.node === nodeId))
  }
}

export const placement = new Placement()
