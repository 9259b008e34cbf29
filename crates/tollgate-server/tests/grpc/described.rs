use super::*;
use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// The file of the service, which imports all others.
const FILE: &str = "envoy/service/ratelimit/v3/rls.proto";

fn manifest_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The files in `proto/` and their imports, without comments.
fn our_descriptors() -> FileDescriptorSet {
    let mut set = protox::compile([FILE], [manifest_path("proto")]).unwrap();
    set.file.iter_mut().for_each(|file| file.source_code_info = None);
    set
}

/// The descriptor set of Envoy's whole interface.
fn envoys_descriptors() -> FileDescriptorSet {
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = cargo(&["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = ["metadata", "--format-version", "1", "--offline", "--filter-platform", host];
    let reported: Value = serde_json::from_str(&cargo(&metadata)).unwrap();
    let types = |package: &&Value| package["name"] == "envoy-types";
    let manifest = &reported["packages"].as_array().unwrap().iter().find(types).unwrap()["manifest_path"];
    let file = Path::new(manifest.as_str().unwrap()).with_file_name("src/generated/types.bin");
    FileDescriptorSet::decode(&*fs::read(file).unwrap()).unwrap()
}

/// Compares a checked-in file with what was generated. `TOLLGATE_WRITE=1` writes it instead.
#[track_caller]
fn compare(path: &str, generated: &[u8]) {
    let path = manifest_path(path);
    if std::env::var_os("TOLLGATE_WRITE").is_some() {
        fs::write(&path, generated).unwrap();
    }
    let same = fs::read(&path).unwrap_or_default() == generated;
    assert!(same, "{path:?} is not what proto/ generates: run this test with TOLLGATE_WRITE=1");
}

#[test]
fn the_generated_files_are_those_of_the_protos() {
    let set = our_descriptors();
    compare("src/grpc/rls.bin", &set.encode_to_vec());
    let generated = directory("grpc-generated");
    let build =
        tonic_prost_build::configure().build_client(false).codec_path("crate::grpc::codec::SmallCodec");
    build.out_dir(&generated).compile_fds(set).unwrap();
    for file in fs::read_dir(&generated).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        compare(&format!("src/grpc/pb/{name}"), &fs::read(file.path()).unwrap());
    }
}

/// Removes the annotations, which tollgate's files do not have.
fn without_options(message: &mut DescriptorProto) {
    message.options = None;
    message.field.iter_mut().for_each(|field| field.options = None);
    message.enum_type.iter_mut().for_each(enum_without_options);
    message.nested_type.iter_mut().for_each(without_options);
}

fn enum_without_options(values: &mut EnumDescriptorProto) {
    values.options = None;
    values.value.iter_mut().for_each(|value| value.options = None);
}

#[test]
fn every_message_and_service_is_the_one_of_envoy() {
    let mut theirs = envoys_descriptors();
    for file in &mut theirs.file {
        file.message_type.iter_mut().for_each(without_options);
        file.enum_type.iter_mut().for_each(enum_without_options);
        file.service
            .iter_mut()
            .flat_map(|service| &mut service.method)
            .for_each(|method| method.options = None);
    }
    let envoys = |file: &&FileDescriptorProto| file.package().starts_with("envoy.");
    for ours in our_descriptors().file.iter().filter(envoys) {
        let theirs = theirs.file.iter().find(|file| file.name() == ours.name()).unwrap();
        assert_eq!(ours.package(), theirs.package());
        assert_eq!(ours.service, theirs.service);
        for message in &ours.message_type {
            assert!(theirs.message_type.contains(message), "{message:#?}");
        }
        for values in &ours.enum_type {
            assert!(theirs.enum_type.contains(values), "{values:#?}");
        }
    }
}
