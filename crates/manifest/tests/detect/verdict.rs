//! Verdict, workload type and reasons.

use agentaflow_manifest::detect::{BASE_KEYWORDS, EvidenceKind, WorkloadType};

use crate::{check, files};

#[test]
fn every_base_keyword_alone_is_ml_work_in_any_case() {
    for keyword in BASE_KEYWORDS {
        let title: String =
            keyword.split(' ').map(|word| word[..1].to_uppercase() + &word[1..] + " ").collect();
        for text in [keyword.to_owned(), keyword.to_uppercase(), title, format!("x\n({keyword}),")]
        {
            let detection = check(&text);
            assert!(detection.is_ml_workload, "{text}");
            assert!(detection.detected_keywords.iter().any(|word| word == keyword), "{text}");
        }
    }
}

#[test]
fn only_cv_and_nlp_must_be_whole_words() {
    for text in ["csv", "scv", "cvs", "nlpx", "my_cv", "cv2", "unlp"] {
        assert!(!check(text).is_ml_workload, "{text}");
    }
    for keyword in BASE_KEYWORDS.into_iter().filter(|keyword| !matches!(*keyword, "cv" | "nlp")) {
        let text = format!("xx{keyword}yy");
        assert!(check(&text).is_ml_workload, "{text}");
    }
}

#[test]
fn a_readme_about_cpus_does_not_clear_the_code_beside_it() {
    let code = ("train.py", "import torch\n");
    assert!(files(&[("README.md", "CPU only machines are slow here"), code]).is_ml_workload);
    assert!(!files(&[("README.md", "No GPU is needed."), code]).is_ml_workload);
    assert!(!files(&[("requirements.txt", "torch==2.3.0+cpu\n"), code]).is_ml_workload);
}

#[test]
fn a_negation_clears_the_verdict_and_says_so() {
    let table = [
        ("no GPU needed", "no GPU needed"),
        ("Machine learning with small trees, no GPU required", "no GPU required"),
        ("a PyTorch model, CPU only", "CPU only"),
        ("PyTorch inference runs on the CPU", "runs on the CPU"),
        ("without a GPU", "without a GPU"),
        ("It does not use CUDA", "not use CUDA"),
        ("We use rules instead of machine learning", "instead of machine learning"),
        ("Machine learning is out of scope", "Machine learning is out of scope"),
        ("for non-GPU nodes", "non-GPU nodes"),
        ("GPUs are no longer needed", "GPUs are no longer needed"),
        ("No, no GPU is needed", "no GPU is needed"),
        ("A GPU isn't strictly necessary", "GPU isn't strictly necessary"),
        ("We won't be using GPUs", "won't be using GPUs"),
        ("GPU support is disabled", "GPU support is disabled"),
        ("GPU acceleration is not needed", "GPU acceleration is not needed"),
        ("Selenium tests in headless Chrome (--disable-gpu)", "disable-gpu"),
        ("A PyTorch image; we disable CUDA.", "disable CUDA"),
        ("GPU required: false", "GPU required: false"),
        ("gpu: none", "gpu: none"),
        ("nvidia.com/gpu: 0", "gpu: 0"),
        ("torch==2.3.0+cpu\ntransformers==4.41", "+cpu"),
        ("CUDA_VISIBLE_DEVICES=-1 python main.py", "CUDA_VISIBLE_DEVICES"),
        ("export CUDA_VISIBLE_DEVICES=\"\"", "CUDA_VISIBLE_DEVICES"),
        ("USE_GPU=0", "GPU=0"),
        ("Läuft ohne GPU", "ohne GPU"),
        ("keine GPU erforderlich", "keine GPU"),
        ("Pas besoin de GPU", "Pas besoin de GPU"),
        ("Funciona sin una GPU", "sin una GPU"),
        ("No necesita GPU", "No necesita GPU"),
        ("senza GPU", "senza GPU"),
    ];
    for (text, words) in table {
        let detection = check(text);
        assert!(!detection.is_ml_workload, "{text}");
        let cleared = detection.cleared_by.unwrap_or_else(|| panic!("{text}: not cleared"));
        assert!(cleared.contains(words), "{text}: {cleared}");
        assert!(detection.reasoning[0].contains(words), "{text}: {:?}", detection.reasoning);
    }
}

#[test]
fn phrases_similar_to_negations_clear_nothing() {
    for text in [
        "This cannot run without a GPU",
        "Without a GPU it would take weeks",
        "No GPU sharing, please",
        "No GPU quota is left",
        "No more than 4 GPUs",
        "not only PyTorch",
        "No, a GPU is required",
        "It works with or without a GPU",
        "GPU required: yes, not optional",
        "GPUs needed, no matter which",
        "Is a CPU enough? No, CUDA it must be",
        "if no GPU is available it falls back to the CPU",
        "no GPU for the tests, but PyTorch training in the cluster",
        "My laptop has no GPU, so PyTorch runs elsewhere",
        "no longer CPU only: CUDA",
        "CPU only is too slow; it needs a GPU",
        "device: cuda:0",
        "Disable GPU throttling on all nodes",
        "disable-gpu-sharing: true",
        "Das geht nicht ohne GPU",
        "CUDA_VISIBLE_DEVICES=0 python train.py",
        "CUDA_VISIBLE_DEVICES=0,1",
    ] {
        assert!(check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn names_of_models_and_words_beyond_the_base_count() {
    let table = [
        ("Fine-tune Llama-3 8B", WorkloadType::FineTuning),
        ("YOLOv8 on 24 camera streams", WorkloadType::Detection),
        ("Stable Diffusion web service", WorkloadType::Generation),
        ("Whisper large-v3 for meetings", WorkloadType::Speech),
        ("sentence-embeddings of abstracts", WorkloadType::Embedding),
        ("Generate embeddings with sentence-transformers", WorkloadType::Embedding),
        ("Serve Kimi-K2-Instruct", WorkloadType::Inference),
        ("Serve Nemotron", WorkloadType::Inference),
        ("semantic segmentation of roofs", WorkloadType::Segmentation),
        ("vLLM deployment", WorkloadType::Inference),
        ("Fine-tuning job on 8xH100 using FSDP", WorkloadType::FineTuning),
        ("a neural net for churn", WorkloadType::General),
        ("machine-learning lab", WorkloadType::General),
    ];
    for (text, kind) in table {
        assert_eq!(check(text).workload_type, kind, "{text}");
    }
}

#[test]
fn evidence_says_where() {
    let detection = files(&[("a/README.md", "# Shop\n\nIt uses\nour GPU and a GPU.\n")]);
    let [found] = detection.evidence.as_slice() else { panic!("{:?}", detection.evidence) };
    assert_eq!(found.location.to_string(), "a/README.md:4:5");
    assert_eq!((found.found.as_str(), found.times, found.kind), ("GPU", 2, EvidenceKind::Keyword));
    assert_eq!(check("wéb GPU").evidence[0].location.to_string(), "line 1, column 5");
}

#[test]
fn files_are_parsed_by_format() {
    let table: [(&str, &str, &str); 8] = [
        ("requirements.txt", "flask\ntorch\n", "torch"),
        ("requirements-dev.txt", "vllm[extra]>=0.5 ; python_version > '3.9'\n", "vllm"),
        ("pyproject.toml", "dependencies = [\n  \"diffusers>=0.2\",\n]\n", "diffusers"),
        ("environment.yml", "dependencies:\n  - transformers=4.41\n", "transformers"),
        ("src/main.py", "import os\nfrom ultralytics import YOLO\n", "ultralytics"),
        ("Dockerfile", "FROM python:3.12\nRUN pip install --no-cache-dir peft && true\n", "peft"),
        ("weights/model.safetensors", "", ".safetensors"),
        ("kernel.cu", "__global__ void f() {}", ".cu"),
    ];
    for (path, content, word) in table {
        let detection = files(&[(path, content)]);
        assert!(detection.is_ml_workload, "{path}");
        assert!(
            detection.detected_keywords.iter().any(|found| found == word),
            "{path}: {detection:?}"
        );
    }
    for (path, content) in [
        ("requirements.txt", "flask\n# torchlight theme\nrequests\n"),
        ("README.md", "Light your torch"),
        ("src/main.py", "import csv\nimport os\n"),
        ("requirements.txt", "scikit-learn\n"),
    ] {
        assert!(!files(&[(path, content)]).is_ml_workload, "{path}: {content}");
    }
}

#[test]
fn a_notebook_is_read_cell_by_cell_and_a_broken_one_as_text() {
    let notebook = r##"{"cells": [
        {"cell_type": "markdown", "source": "# Demo"},
        {"cell_type": "code", "source": ["import os\n", "import torch\n"], "outputs": [{"text": "gpu"}]},
        {"cell_type": "code", "source": 7}
    ]}"##;
    let detection = files(&[("demo.ipynb", notebook)]);
    let [found] = detection.evidence.as_slice() else { panic!("{:?}", detection.evidence) };
    assert_eq!(found.location.to_string(), "demo.ipynb[cell 2]:2:8");
    let broken = files(&[("demo.ipynb", "{\"cells\": [ import torch on a GPU")]);
    assert!(broken.is_ml_workload);
    assert!(
        broken.reasoning.iter().any(|line| line.contains("demo.ipynb is not a notebook")),
        "{broken:?}"
    );
    let deep = "[".repeat(100_000);
    assert!(!files(&[("deep.ipynb", &deep)]).is_ml_workload);
}

#[test]
fn names_of_companies_and_places_are_no_models() {
    for text in
        ["Keras Bros. construction invoices", "Yolo County property tax", "Whisper Ltd payroll"]
    {
        assert!(!check(text).is_ml_workload, "{text}");
    }
    for text in [
        "YOLO for county roads",
        "keras inc. tests",
        "CUDA Street",
        "Pedestrians by Yolo on a street",
    ] {
        assert!(check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn ambiguous_words_lower_the_confidence() {
    for text in ["Upload your CV as a PDF", "Type inference", "barracuda"] {
        let detection = check(text);
        assert!(
            detection.is_ml_workload && detection.confidence < 0.5,
            "{text}: {}",
            detection.confidence
        );
    }
    assert!(check("PyTorch and CUDA").confidence > 0.95);
}

#[test]
fn the_report_has_the_fields_that_programs_rely_on() {
    let value = serde_json::to_value(check("Serve Llama-3 8B in fp16").report()).unwrap();
    assert_eq!(value["is_ml_workload"], true);
    assert_eq!(value["workload_type"], "inference");
    assert_eq!((&value["gpu_count"], &value["gpu_type"]), (&1.into(), &"l4".into()));
    assert!(value["gpu_memory_mib"].as_u64().unwrap() > 15_000);
    assert_eq!(
        (&value["memory"], &value["cpu"], &value["shm"]),
        (&"32Gi".into(), &"8000m".into(), &"2Gi".into())
    );
    assert!(
        value["confidence"].is_f64()
            && value["detected_keywords"].is_array()
            && value["reasoning"].is_string()
    );
    let none = serde_json::to_value(check("a blog").report()).unwrap();
    assert_eq!(none["gpu_count"], 0);
    for field in ["gpu_type", "memory", "cpu", "shm"] {
        assert!(none[field].is_null(), "{field}");
    }
}

#[test]
fn code_that_trains_is_training() {
    let adapted = "import torch\nfrom transformers import AutoModelForCausalLM\n\
        model = AutoModelForCausalLM.from_pretrained(\"meta-llama/Llama-3.1-8B\", torch_dtype=torch.bfloat16)\n\
        optimizer = torch.optim.AdamW(model.parameters())\n";
    let classic = "import torch\nfrom torchvision.models import resnet50\nmodel = resnet50().cuda()\n\
        opt = torch.optim.SGD(model.parameters(), lr=0.1)\nloss.backward()\nopt.step()\n";
    let keras =
        "import tensorflow as tf\nmodel = tf.keras.applications.ResNet50()\nmodel.fit(data)\n";
    let lightning = "import lightning\nclassifier = ResNet()\ntrainer.fit(classifier)\n";
    let trainer = "from transformers import Trainer\ntrainer = Trainer(model)\ntrainer.train()\n";
    for code in [adapted, classic, keras, lightning, trainer, "loss.backward(); optimizer.step()"] {
        let file = files(&[("run.py", code)]);
        assert_eq!(file.workload_type, WorkloadType::Training, "{code}");
        assert_eq!(check(code).workload_type, WorkloadType::Training, "{code}");
    }
    let sizing = files(&[("run.py", adapted)]).sizing.unwrap();
    let terms: Vec<_> = sizing.arithmetic.iter().map(|term| term.name).collect();
    assert!(terms.contains(&"optimiser states"), "{terms:?}");
}

#[test]
fn code_that_only_applies_a_model_is_not_training() {
    let serve =
        "import torch\nmodel = resnet50().cuda().eval()\nwith torch.no_grad():\n    model(x)\n";
    assert_eq!(files(&[("run.py", serve)]).workload_type, WorkloadType::Classification);
    for other in
        ["player.backward()", "step(3); counter.step()", "a conductor and a trainer", "opt.step()"]
    {
        assert!(!check(other).is_ml_workload, "{other}");
    }
}

#[test]
fn zero_gpus_clear_the_verdict_and_the_first_gpu_does_not() {
    for text in [
        "gpu: 0",
        "0 GPUs pytorch",
        "values.yaml: gpu: 0, replicas: 2",
        "pytorch with gpus=0",
        "num_gpus: 0",
        "pytorch, gpu.enabled: false",
        "PyTorch on 0 GPUs",
    ] {
        let detection = check(text);
        assert!(!detection.is_ml_workload, "{text}");
        assert!(detection.cleared_by.is_some(), "{text}");
    }
    for text in [
        "tf.device('/gpu:0')",
        "python run.py --gpu=0",
        "device: cuda:0",
        "GPU 0, GPU 1",
        "PyTorch servers scale from 0 GPUs to 8",
        "scale down to 0 GPUs at night",
        "0 GPUs are available",
        "gpu: 8",
        "10 GPUs",
    ] {
        assert!(check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn an_answer_of_no_clears_the_verdict_and_says_so() {
    let table = [
        ("A PyTorch service. GPU? No.", "GPU? No"),
        ("Machine learning with trees; GPU needed? None", "GPU needed? None"),
        ("Do we need a GPU for this PyTorch service? No, a CPU will do.", "GPU for this PyTorch"),
        ("Q: Is a GPU required?\nA: No.\nIt is a PyTorch service.", "GPU required? A: No"),
        ("needs GPU - no", "GPU - no"),
        ("PyTorch image. GPU – none", "GPU – none"),
        ("GPU - not needed", "GPU - not needed"),
        ("| PyTorch | yes |\n| GPU | no |", "GPU | no"),
        ("GPU: no", "GPU: no"),
        ("GPU: ❌", "GPU: ❌"),
        ("GPU: n/a", "GPU: n"),
        ("CUDA? Nope!", "CUDA? Nope"),
        ("How many GPUs do we need? None at all.", "GPUs do we need? None"),
        ("name = \"gpu-less\"", "\"gpu-less\" (line 1"),
    ];
    for (text, words) in table {
        let detection = check(text);
        assert!(!detection.is_ml_workload, "{text}");
        let cleared = detection.cleared_by.unwrap_or_else(|| panic!("{text}: not cleared"));
        assert!(cleared.contains(words), "{text}: {cleared}");
    }
}

#[test]
fn a_no_to_another_question_clears_nothing() {
    for text in [
        "Is one GPU enough for this? No.",
        "Do we need more than one GPU? No.",
        "Can it run without a GPU? No.",
        "A PyTorch model. CPU only? No.",
        "cpu_only: false, PyTorch",
        "Is the GPU optional? No.",
        "Do we have a GPU? No, we rent.",
        "GPU? No problem, two of them",
        "GPU? No idea.",
        "GPU? Not yet",
        "GPU? Yes. Web server? No.",
        "It needs a GPU, no?",
        "It needs a GPU - no CPU would do",
        "GPU: no preference",
        "GPU: not sure",
        "GPU: none available today",
        "Do the tests need a GPU? No. PyTorch training does.",
        "GPU? No. CUDA? Yes.",
        "Which GPU do we need? Off the shelf ones.",
        "Machine learning - no code platform",
        "Deep learning — none of it is easy",
        "Do we use CUDA? Not on Mondays",
    ] {
        assert!(check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn adapters_that_are_only_served_are_not_trained() {
    for (text, kind) in [
        ("vLLM serving Llama 8B with 4 LoRA adapters", WorkloadType::Inference),
        ("Serve SDXL with two LoRA adapters", WorkloadType::Inference),
        ("Train LoRA adapters, then serve them with vLLM", WorkloadType::FineTuning),
        ("LoRA adapters for Mistral 7B", WorkloadType::FineTuning),
    ] {
        assert_eq!(check(text).workload_type, kind, "{text}");
    }
}
