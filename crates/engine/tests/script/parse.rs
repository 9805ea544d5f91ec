//! Parses nodes, workloads, queues, policies and foreign use. An `Err` is the engine's rejection.

use agentaflow_engine::labels::{NodeTerm, Selector};
use agentaflow_engine::{
    AdoptedLoss, AdoptedTask, AdoptedWorkload, AffinityKind, Ageing, DeviceSelection,
    ForeignDemand, ForeignGpu, ForeignUse, Gate, Gpu, GpuRequest, MiB, MicroDollars, MigMode,
    MigProfile, MilliCpu, MilliGpu, Node, NodePreference, OnFault, Percent, Policy, Price,
    Priority, Queue, QueueOrder, Quota, Request, Role, Span, TaskAffinity, Time, TokenAccess,
    Topology, TopologySpread, Workload,
};

use super::arguments::{Arguments, expression};

type Parsed<T> = Result<T, String>;

/// `node a gpus=8 model=A100 mem=40960 cpu=64 … labels rack=r1 taints spot:NoSchedule has volumes=16`
pub(crate) fn node(mut arguments: Arguments) -> Parsed<Node> {
    let mut node = Node::new(arguments.plain(0));
    node.cpu = arguments.take_cpu("cpu").unwrap_or(MilliCpu(64_000));
    node.memory = MiB(arguments.take_number("memory").unwrap_or(512 << 10));
    node.storage = MiB(arguments.take_number("storage").unwrap_or(1 << 20));
    node.rank = arguments.take_number("rank").unwrap_or(0) as u32;
    node.max_tasks = arguments.take_number("max-tasks").map(|tasks| tasks as u32);
    if arguments.flag("counted") {
        node.device_selection = DeviceSelection::Node;
    }
    node.price = Price {
        gpu_hour: MicroDollars(arguments.take_number("gpu-price").unwrap_or(0)),
        cpu_hour: MicroDollars(arguments.take_number("cpu-price").unwrap_or(0)),
        gib_hour: MicroDollars(arguments.take_number("gib-price").unwrap_or(0)),
    };
    node.gpus = gpus(&mut arguments)?;
    node.labels = arguments.labels("labels");
    node.taints = arguments.taints();
    let resources = arguments.pairs("has").into_iter();
    node.resources =
        resources.map(|(name, amount)| (name.into(), arguments.number(&amount))).collect();
    arguments.end(1);
    Ok(node)
}

/// `gpus=4 model=A100 mem=40960 nvlink=2 mig=free`, or `gpu=A100:40960 gpu=T4:16384`; `nvlink=2` connects
/// pairs. GPU ids are 0, 1, 2, …, or `names=a,b`.
fn gpus(arguments: &mut Arguments) -> Parsed<Vec<Gpu>> {
    let count = arguments.take_number("gpus").unwrap_or(0);
    let model = arguments.take("model").unwrap_or_else(|| "A100".to_owned());
    let memory = arguments.take_number("mem").unwrap_or(40960);
    let mut kinds = vec![(model, memory); count as usize];
    for gpu in arguments.take_all("gpu") {
        let (model, memory) =
            gpu.split_once(':').unwrap_or_else(|| arguments.mistake("a GPU is MODEL:MIB"));
        kinds.push((model.to_owned(), arguments.number(memory)));
    }
    let joined = arguments.take_number("nvlink");
    let mig = mig_mode(arguments)?;
    let names = arguments
        .take("names")
        .map(|names| names.split(',').map(str::to_owned).collect::<Vec<_>>());
    let gpu = |(index, (model, memory)): (usize, (String, u64))| Gpu {
        id: names.as_ref().map_or(index.to_string(), |names| names[index].clone()).into(),
        model: model.into(),
        memory: MiB(memory),
        nvlink: joined.map(|joined| (index as u64 / joined.max(1)) as u16),
        mig: mig.clone(),
    };
    Ok(kinds.into_iter().enumerate().map(gpu).collect())
}

/// `mig=free`, or a fixed layout: `mig=3g.20gb@0,2g.10gb@4`.
fn mig_mode(arguments: &mut Arguments) -> Parsed<MigMode> {
    let Some(mode) = arguments.take("mig") else { return Ok(MigMode::Off) };
    if mode == "free" {
        return Ok(MigMode::Free);
    }
    let mut slices = Vec::new();
    for slice in mode.split(',') {
        let (profile, start) =
            slice.split_once('@').unwrap_or_else(|| arguments.mistake("a slice is PROFILE@START"));
        slices.push((refusable(MigProfile::new(profile))?, arguments.number(start) as u8));
    }
    Ok(MigMode::Fixed(slices))
}

/// `submit train gpus=2 cpu=4 tasks=4 same=rack estimate=1h prio=7 queue=q strategy=pack …`; each `and` adds
/// a role with another request.
pub(crate) fn workload(mut arguments: Arguments) -> Parsed<Workload> {
    let mut workload = Workload::new(arguments.plain(0), Request::default());
    workload.tasks = arguments.take_number("tasks").unwrap_or(1) as u32;
    workload.priority = take_priority(&mut arguments, "prio").unwrap_or(Priority(5));
    workload.precedence = arguments.take_number("precedence").unwrap_or(0) as u8;
    if let Some(queue) = arguments.take("queue") {
        workload.queue = queue.into();
    }
    workload.strategy =
        arguments.take("strategy").map(|name| refusable(name.parse())).transpose()?;
    workload.estimate = arguments.take_span("estimate");
    workload.min_runtime = arguments.take_span("min-runtime");
    workload.replacement_wait = arguments.take_span("replacement-wait");
    workload.grace = arguments.take_span("grace").unwrap_or(Span(0));
    workload.submitted = arguments.take_span("submitted").map(|span| Time(span.0));
    let same = arguments.take("same").map(Topology::Same);
    workload.topology = same.or(arguments.take("spread").map(Topology::Spread));
    let preferred = arguments.take("prefer-same").unwrap_or_default();
    workload.preferred_topology = list(&preferred).map(str::to_owned).collect();
    workload.preemptible = arguments.flag("preemptible");
    workload.may_preempt = !arguments.flag("patient");
    if arguments.flag("keep") {
        workload.on_fault = OnFault::Keep;
    }
    let budgets = arguments.take("budgets").unwrap_or_default();
    workload.budgets = list(&budgets).map(Into::into).collect();
    workload.gate = arguments.take("gate").map(|gate| self::gate(&gate));
    workload.request = request(&mut arguments)?.into();
    for mut role in arguments.take_more() {
        let tasks = role.take_number("tasks").unwrap_or(1) as u32;
        let request = request(&mut role)?.into();
        role.end(0);
        workload.roles.push(Role { tasks, request });
    }
    arguments.end(1);
    Ok(workload)
}

/// `adopt train task=0:a:0,1 task=1:b finished=2 lost=3:c placed=10m confirmed stopping=1` and the options of
/// `submit`: task 0 is on these GPUs of a, task 1 on unknown GPUs of b, task 2 is finished, task 3 was lost on c.
pub(crate) fn adopted(mut arguments: Arguments) -> Parsed<AdoptedWorkload> {
    let (seats, confirmed) = (arguments.take_all("task"), arguments.flag("confirmed"));
    let losses = arguments.take_all("lost");
    let finished = arguments.take("finished").unwrap_or_default();
    let stopping = arguments.take("stopping").unwrap_or_default();
    let tasks = |arguments: &Arguments, text: &str| -> Vec<u32> {
        list(text).map(|task| arguments.number(task) as u32).collect()
    };
    let (finished, stopping) = (tasks(&arguments, &finished), tasks(&arguments, &stopping));
    let seat = |text: &String| {
        let mut parts = text.split(':');
        let task = arguments.number(parts.next().unwrap_or_default()) as u32;
        AdoptedTask {
            task,
            node: parts.next().unwrap_or_default().into(),
            devices: parts.next().map(|gpus| list(gpus).map(Into::into).collect()),
            confirmed,
            terminating: stopping.contains(&task),
        }
    };
    let seats = seats.iter().map(seat).collect();
    let placed_at = arguments.take_span("placed").map_or(Time(0), |span| Time(span.0));
    let finished = finished.into_iter().collect();
    let adopted = |text: &String| {
        let (task, node) =
            text.split_once(':').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
        AdoptedLoss { task: arguments.number(task) as u32, node: node.map(Into::into), until: None }
    };
    let lost = losses.iter().map(adopted).collect();
    Ok(AdoptedWorkload { workload: workload(arguments)?, tasks: seats, finished, lost, placed_at })
}

/// `paused:why`, `budget:whose`, `incomplete:1/4`
pub(crate) fn gate(text: &str) -> Gate {
    match text.split_once(':') {
        Some(("budget", whose)) => Gate::Budget(whose.to_owned()),
        Some(("incomplete", parts)) => {
            let (have, need) = parts.split_once('/').unwrap_or(("0", "0"));
            Gate::PodsMissing { have: have.parse().unwrap_or(0), need: need.parse().unwrap_or(0) }
        }
        Some((_, why)) => Gate::Paused(why.to_owned()),
        None => Gate::Paused(text.to_owned()),
    }
}

fn request(arguments: &mut Arguments) -> Parsed<Request> {
    let models = arguments.take("models").unwrap_or_default();
    Ok(Request {
        gpu: gpu_ask(arguments)?,
        exclusive: arguments.flag("exclusive"),
        min_gpu_memory: MiB(arguments.take_number("min-gpu-memory").unwrap_or(0)),
        models: list(&models).map(Into::into).collect(),
        preferred_model: arguments.take("prefers-model").map(Into::into),
        nvlink: arguments.flag("nvlink"),
        cpu: arguments.take_cpu("cpu").unwrap_or_default(),
        memory: MiB(arguments.take_number("memory").unwrap_or(0)),
        storage: MiB(arguments.take_number("storage").unwrap_or(0)),
        resources: arguments
            .pairs("needs")
            .into_iter()
            .map(|(name, n)| (name.into(), arguments.number(&n)))
            .collect(),
        tokens: arguments
            .pairs("tokens")
            .into_iter()
            .map(|(name, kind)| (name.into(), token(&kind)))
            .collect(),
        node: arguments.take("node").map(Into::into),
        node_selector: arguments.labels("selector"),
        required_nodes: required_nodes(arguments),
        preferred_nodes: arguments
            .take_all("prefers")
            .iter()
            .map(|text| preferred(arguments, text))
            .collect(),
        tolerations: arguments.tolerations(),
        labels: arguments.labels("labels"),
        affinity: affinity(arguments),
        spread: skews(arguments),
    })
}

/// `gpus=2`, `share=500`, `gpu-memory=8192`, `mig=1g.5gb` or `mig=1g.5gb*2`; otherwise none.
pub(crate) fn gpu_ask(arguments: &mut Arguments) -> Parsed<GpuRequest> {
    if let Some(count) = arguments.take_number("gpus") {
        return Ok(GpuRequest::Whole(count as u32));
    }
    if let Some(share) = arguments.take_number("share") {
        return refusable(MilliGpu::new(share as u32)).map(GpuRequest::Fraction);
    }
    if let Some(mib) = arguments.take_number("gpu-memory") {
        return Ok(GpuRequest::Memory(MiB(mib)));
    }
    let Some(slices) = arguments.take("mig") else { return Ok(GpuRequest::None) };
    let (profile, count) = slices.split_once('*').unwrap_or((&slices, "1"));
    let profile = refusable(MigProfile::new(profile))?;
    Ok(GpuRequest::Mig { profile, count: arguments.number(count) as u32 })
}

/// `where rack=r1 cores>8 or rack=r2`: conditions of a term; `or` starts the next term.
fn required_nodes(arguments: &mut Arguments) -> Vec<NodeTerm> {
    let section = arguments.section("where");
    let terms = section.split(|word| word == "or").filter(|term| !term.is_empty());
    let term = |term: &[String]| NodeTerm {
        exprs: term.iter().map(|word| expression(word)).collect(),
        names: Vec::new(),
    };
    terms.map(term).collect()
}

/// `prefers=50:rack=r1`
fn preferred(arguments: &Arguments, text: &str) -> NodePreference {
    let (weight, condition) = text
        .split_once(':')
        .unwrap_or_else(|| arguments.mistake("a preference is WEIGHT:CONDITION"));
    let term = NodeTerm { exprs: vec![expression(condition)], names: Vec::new() };
    NodePreference { weight: arguments.number(weight) as u32, term }
}

/// `near=rack:app=db` is required, `near=rack:app=db:50` is preferred; the same with `away`.
pub(crate) fn affinity(arguments: &mut Arguments) -> Vec<TaskAffinity> {
    let mut found = Vec::new();
    for (name, side) in [("near", AffinityKind::Affinity), ("away", AffinityKind::AntiAffinity)] {
        for text in arguments.take_all(name) {
            let mut parts = text.split(':');
            let key = parts.next().unwrap_or_default().to_owned();
            let selector = selector(parts.next().unwrap_or_default());
            let weight = parts.next().map(|weight| arguments.number(weight) as u32);
            found.push(TaskAffinity { kind: side, selector, key, weight });
        }
    }
    found
}

/// `skew=1:zone:app=web` is required, `soft-skew=…` is preferred; `skew=1:zone:app=web:3` sets the minimum of
/// domains; `ignore-affinity` and `honor-taints` follow.
fn skews(arguments: &mut Arguments) -> Vec<TopologySpread> {
    let mut found = Vec::new();
    for (name, required) in [("skew", true), ("soft-skew", false)] {
        for text in arguments.take_all(name) {
            let mut parts = text.split(':');
            let max_skew = arguments.number(parts.next().unwrap_or_default()) as u32;
            let key = parts.next().unwrap_or_default().to_owned();
            let selector = selector(parts.next().unwrap_or_default());
            let rest: Vec<&str> = parts.collect();
            let least = rest.iter().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            let min_domains = least.map_or(0, |domains| arguments.number(domains) as u32);
            found.push(TopologySpread {
                selector,
                key,
                max_skew,
                required,
                min_domains,
                ignore_node_affinity: rest.contains(&"ignore-affinity"),
                honor_taints: rest.contains(&"honor-taints"),
            });
        }
    }
    found
}

fn selector(text: &str) -> Selector {
    Selector { exprs: list(text).map(expression).collect(), ..Selector::default() }
}

fn token(kind: &str) -> TokenAccess {
    match kind {
        "shared" => TokenAccess::Shared,
        "one-node" => TokenAccess::OneNode,
        "one-task" => TokenAccess::OneTask,
        _ => TokenAccess::Exclusive,
    }
}

/// `queue research parent=root weight=100 guaranteed.gpu=4 limit.gpu=8 limit.model.A100=2 strict`
pub(crate) fn queue(mut arguments: Arguments) -> Queue {
    let mut queue = Queue::new(arguments.plain(0));
    if let Some(parent) = arguments.take("parent") {
        queue.parent = parent.into();
    }
    queue.weight = arguments.take_number("weight").unwrap_or(100) as u32;
    queue.max_priority = take_priority(&mut arguments, "max-prio").unwrap_or(Priority::MAX);
    queue.borrow = !arguments.flag("strict");
    queue.guaranteed = quota(&mut arguments, "guaranteed");
    queue.limit = quota(&mut arguments, "limit");
    arguments.end(1);
    queue
}

/// GPUs and cores in whole units.
fn quota(arguments: &mut Arguments, name: &str) -> Quota {
    let mut quota = Quota::default();
    for (key, value) in arguments.take_below(name) {
        let amount = arguments.number(&value);
        let thousandths = amount.saturating_mul(1000);
        match key.split_once('.') {
            None if key == "gpu" => quota.gpu = Some(thousandths),
            None if key == "cpu" => quota.cpu = Some(thousandths),
            None if key == "memory" => quota.memory = Some(amount),
            None if key == "storage" => quota.storage = Some(amount),
            Some(("model", model)) => {
                quota.models.insert(model.into(), thousandths);
            }
            Some(("resource", resource)) => {
                quota.resources.insert(resource.into(), amount);
            }
            _ => arguments.mistake(&format!("no quota is called `{key}`")),
        }
    }
    quota
}

/// `policy strategy=best_fit order=fifo ageing=10m half-life=1h goal=80 backfill=no …`: other settings stay.
pub(crate) fn policy(mut arguments: Arguments, mut policy: Policy) -> Parsed<Policy> {
    if let Some(strategy) = arguments.take("strategy") {
        policy.strategy = refusable(strategy.parse())?;
    }
    if let Some(name) = arguments.take("order") {
        let known = QueueOrder::ALL.into_iter().find(|(known, _)| *known == name);
        policy.order = known.map(|(_, order)| order);
    }
    if let Some(goal) = arguments.take("goal") {
        let goal = goal.parse().unwrap_or(f64::NAN);
        policy.utilization_goal = Some(refusable(Percent::new(goal))?);
    }
    for (name, flag) in [("backfill", &mut policy.backfill), ("preemption", &mut policy.preemption)]
    {
        if let Some(value) = arguments.take(name) {
            *flag = value == "yes";
        }
    }
    if let Some(text) = arguments.take("ageing") {
        policy.ageing = ageing(&arguments, &text);
    }
    let spans = [
        ("half-life", &mut policy.half_life),
        ("patience", &mut policy.patience),
        ("min-runtime", &mut policy.min_runtime),
        ("hold", &mut policy.hold),
        ("backoff", &mut policy.backoff),
        ("max-backoff", &mut policy.max_backoff),
        ("replacement-wait", &mut policy.replacement_wait),
    ];
    for (name, span) in spans {
        *span = arguments.take_span(name).unwrap_or(*span);
    }
    arguments.end(0);
    Ok(policy)
}

/// `off`, the waiting time of one point, or points and their time, such as `100/1m`.
fn ageing(arguments: &Arguments, text: &str) -> Ageing {
    match text.split_once('/') {
        None if text == "off" => Ageing::OFF,
        None => Ageing::one_point_per(arguments.span(text)),
        Some((points, per)) => {
            Ageing { points: arguments.number(points) as u32, per: arguments.span(per) }
        }
    }
}

fn take_priority(arguments: &mut Arguments, name: &str) -> Option<Priority> {
    let text = arguments.take(name)?;
    let Ok(number) = text.parse() else { arguments.mistake(&format!("`{text}` is no priority")) };
    Some(Priority(number))
}

/// `foreign-pending WHO gpus=1 prio=10`, with the arguments of `submit`.
pub(crate) fn foreign_demand(arguments: Arguments) -> Parsed<ForeignDemand> {
    let Workload { request, priority, submitted, .. } = workload(arguments)?;
    Ok(ForeignDemand { request, priority, submitted: submitted.unwrap_or_default() })
}

/// `foreign NODE WHO cpu=4 memory=1024 gpus=1 gpu.0=whole gpu.1=500 gpu.2=8192MiB labels app=db`
pub(crate) fn foreign(mut arguments: Arguments) -> Parsed<ForeignUse> {
    let mut uses = ForeignUse {
        cpu: arguments.take_cpu("cpu").unwrap_or_default(),
        memory: MiB(arguments.take_number("memory").unwrap_or(0)),
        storage: MiB(arguments.take_number("storage").unwrap_or(0)),
        gpu_count: arguments.take_number("gpus").unwrap_or(0) as u32,
        ..ForeignUse::default()
    };
    for (gpu, usage) in arguments.take_below("gpu") {
        let usage = match usage.strip_suffix("MiB") {
            _ if usage == "whole" => ForeignGpu::Whole,
            Some(mib) => ForeignGpu::Memory(MiB(arguments.number(mib))),
            None => ForeignGpu::Share(refusable(MilliGpu::new(arguments.number(&usage) as u32))?),
        };
        uses.gpus.insert(gpu.into(), usage);
    }
    uses.terminating = arguments.flag("stopping");
    uses.labels = arguments.labels("labels");
    uses.anti_affinity = affinity(&mut arguments);
    uses.tokens = arguments
        .pairs("tokens")
        .into_iter()
        .map(|(name, kind)| (name.into(), token(&kind)))
        .collect();
    uses.resources = arguments
        .pairs("needs")
        .into_iter()
        .map(|(name, n)| (name.into(), arguments.number(&n)))
        .collect();
    arguments.end(2);
    Ok(uses)
}

pub(crate) fn refusable<T, E: std::fmt::Display>(result: Result<T, E>) -> Parsed<T> {
    result.map_err(|error| error.to_string())
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|part| !part.is_empty())
}
