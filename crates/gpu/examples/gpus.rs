//! Prints this machine's GPUs as JSON, one object a line: the host, the devices, then readings and processes
//! once a second. `gpus [SECONDS] [--smi | --sim MODEL]`.

use std::thread;
use std::time::{Duration, Instant};

use agentaflow_gpu::{GpuError, GpuSource, Simulated, SimulatedSpec, SmiSource, detect};
use serde_json::json;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = source(&args).and_then(|source| show(&*source, seconds(&args))) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn source(args: &[String]) -> Result<Box<dyn GpuSource>, GpuError> {
    if args.iter().any(|arg| arg == "--smi") {
        return Ok(Box::new(SmiSource::open()?));
    }
    match args.iter().position(|arg| arg == "--sim") {
        None => detect(),
        Some(at) => {
            let model = args.get(at + 1).cloned().unwrap_or_default();
            let spec = SimulatedSpec { count: 2, model, ..SimulatedSpec::default() };
            Ok(Box::new(Simulated::new(&spec)?))
        }
    }
}

fn seconds(args: &[String]) -> u32 {
    args.first().and_then(|arg| arg.parse().ok()).unwrap_or(1)
}

fn show(source: &dyn GpuSource, seconds: u32) -> Result<(), GpuError> {
    println!("{}", json!({ "host": source.host() }));
    println!("{}", json!({ "devices": source.devices()? }));
    for second in 0..seconds {
        if second > 0 {
            thread::sleep(Duration::from_secs(1));
        }
        let begun = Instant::now();
        let (samples, processes) = (source.sample()?, source.processes()?);
        let took_ms = begun.elapsed().as_secs_f64() * 1_000.0;
        println!("{}", json!({ "samples": samples, "processes": processes, "took_ms": took_ms }));
    }
    Ok(())
}
