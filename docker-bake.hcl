# All images with one command, where buildx is: docker buildx bake [gloo|nccl-horovod|xla]. docker/image.sh needs no buildx and
# works out REVISION and the others itself; here they come from variables. What is not given is as the Dockerfile has it.
variable "BASE_IMAGE" { default = null }
variable "BASE_DIGEST" { default = null }
variable "REVISION" { default = null }
variable "VERSION" { default = null }
variable "CREATED" { default = null }
variable "SOURCE_DATE_EPOCH" { default = null }
variable "TORCH_LOCK" { default = null }
variable "WHEELHOUSE" { default = null }

group "default" {
  targets = ["gloo", "nccl-horovod", "xla"]
}

target "common" {
  context = "."
  args = {
    BASE_IMAGE        = BASE_IMAGE
    BASE_DIGEST       = BASE_DIGEST
    REVISION          = REVISION
    VERSION           = VERSION
    CREATED           = CREATED
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
    TORCH_LOCK        = TORCH_LOCK
    WHEELHOUSE        = WHEELHOUSE
  }
}

target "gloo" {
  inherits   = ["common"]
  dockerfile = "docker/gloo.Dockerfile"
  tags       = ["idist-workbench:gloo"]
}

target "nccl-horovod" {
  inherits   = ["common"]
  dockerfile = "docker/nccl-horovod.Dockerfile"
  tags       = ["idist-workbench:nccl-horovod"]
}

target "xla" {
  inherits   = ["common"]
  dockerfile = "docker/xla.Dockerfile"
  tags       = ["idist-workbench:xla"]
}
