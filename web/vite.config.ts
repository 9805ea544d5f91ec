import { svelte } from '@sveltejs/vite-plugin-svelte'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { defineConfig, type Plugin } from 'vite'

// Server of `npm run dev`: a running `agentaflow up`.
const server = process.env.AGENTAFLOW_SERVER ?? 'http://127.0.0.1:8000'
const api = ['/auth', '/billing', '/events', '/gpu-workers', '/history', '/queues', '/registration-tokens', '/strategy', '/users', '/version', '/docs', '/openapi.json']

/** Writes a compressed form beside each file, which the server sends as it is. */
function compressed(): Plugin {
  const write = (folder: string) => {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      const path = join(folder, entry.name)
      if (entry.isDirectory()) write(path)
      else if (!path.endsWith('.gz')) writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }))
    }
  }
  return { name: 'compressed', apply: 'build', closeBundle: () => write(join(import.meta.dirname, 'dist')) }
}

export default defineConfig({
  plugins: [svelte(), compressed()],
  build: {
    target: 'es2022',
    // The content security policy permits no inline script and no data: URL.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
  server: {
    // The server accepts cookies only from its own host and port.
    proxy: Object.fromEntries(
      api.map((path) => [path, { target: server, changeOrigin: true, headers: { origin: server } }]),
    ),
  },
})
