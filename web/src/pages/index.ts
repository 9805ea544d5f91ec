// Pages of the dashboard. A new page is one entry here.
import type { Component } from 'svelte'
import Alerts from './Alerts.svelte'
import Gpus from './Gpus.svelte'
import Keys from './Keys.svelte'
import Node from './Node.svelte'
import Nodes from './Nodes.svelte'
import Overview from './Overview.svelte'
import Queues from './Queues.svelte'
import Submit from './Submit.svelte'
import Usage from './Usage.svelte'
import Users from './Users.svelte'
import Waste from './Waste.svelte'
import Workload from './Workload.svelte'
import Workloads from './Workloads.svelte'

export interface Page {
  path: string
  title: string
  component: Component
  /** Component of `path/ID`. */
  detail?: Component<{ id: string }>
  /** Only admins see the page. */
  admin?: boolean
  /** Viewers do not see the page. */
  writes?: boolean
}

export const PAGES: Page[] = [
  { path: 'overview', title: 'Overview', component: Overview },
  { path: 'workloads', title: 'Workloads', component: Workloads, detail: Workload },
  { path: 'submit', title: 'Submit', component: Submit, writes: true },
  { path: 'gpus', title: 'GPUs', component: Gpus },
  { path: 'nodes', title: 'Nodes', component: Nodes, detail: Node },
  { path: 'alerts', title: 'Alerts', component: Alerts },
  { path: 'queues', title: 'Queues', component: Queues },
  { path: 'usage', title: 'Usage', component: Usage },
  { path: 'waste', title: 'Waste', component: Waste },
  { path: 'users', title: 'Users', component: Users, admin: true },
  { path: 'keys', title: 'Keys', component: Keys },
]

export function href(page: Page): string {
  return page.path === 'overview' ? '/' : `/ui/${page.path}`
}
