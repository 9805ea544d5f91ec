// Names for the schemas of docs/openapi.json.
import type { components } from './schema'

type Schemas = components['schemas']

export type Alert = Schemas['Alert']
export type AlertReport = Schemas['AlertReport']
export type AlertTestResult = Schemas['AlertTestResult']
export type Job = Schemas['Job']
export type JobCreate = Schemas['JobCreate']
export type JobSpec = Schemas['JobSpec']
export type JobStatus = Schemas['JobStatus']
export type Node = Schemas['Node']
export type NodeUpdate = Schemas['NodeUpdate']
export type GpuInstance = Schemas['GpuInstance']
export type Event = Schemas['Event']
export type Explanation = Schemas['Explanation']
export type Queue = Schemas['Queue']
export type QueueSpec = Schemas['QueueSpec']
export type UsageRow = Schemas['UsageRow']
export type WasteRow = Schemas['WasteRow']
export type Curves = Schemas['Curves']
export type Series = Schemas['Series']
export type User = Schemas['User']
export type Role = Schemas['Role']
export type ApiKey = Schemas['ApiKey']
/** A cluster also names its pages and its way to log in. */
export type Version = Schemas['Version'] & { pages?: string[]; login?: 'token' }
export type ErrorBody = Schemas['ErrorBody']
