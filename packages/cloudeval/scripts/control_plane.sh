#!/usr/bin/env bash
# Build kube-apiserver and kube-controller-manager from Debian's source package `kubernetes` into the cache.
# Needs: golang-go, dpkg-dev, and a Debian source list. Takes some four minutes on two cores and 3 GB of disk.
set -euo pipefail
cache=${CLOUDEVAL_CACHE:-$HOME/.cache/cloudeval}
bin=$cache/control-plane
if [[ -x $bin/kube-apiserver && -x $bin/kube-controller-manager ]]; then
  echo "already built: $bin"; exit 0
fi
for tool in go dpkg-source etcd; do
  command -v "$tool" > /dev/null || { echo "$tool is missing: apt-get install golang-go dpkg-dev etcd-server" >&2; exit 1; }
done
src=$cache/src
mkdir -p "$bin" "$src/lists/partial"
cd "$src"
if ! compgen -G 'kubernetes-*/cmd/kube-apiserver' > /dev/null; then
  sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > src.sources
  options=(-qq -o "Dir::Etc::sourcelist=$src/src.sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$src/lists"
    -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  apt-get "${options[@]}" source kubernetes
fi
tree=$(echo "$src"/kubernetes-*/)
export GOPATH=$src/gopath GO111MODULE=off CGO_ENABLED=0 GOCACHE=$src/gocache GOFLAGS=
mkdir -p "$GOPATH/src/k8s.io"
ln -sfn "$tree" "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"

generate() {  # output package, then the files that may carry the tag
  local output=$1; shift
  local inputs
  inputs=$(cd "$GOPATH/src/k8s.io/kubernetes" && grep -rl --include='*.go' '+k8s:openapi-gen=true' "$@" | xargs -n1 dirname | sort -u |
    sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; s#^vendor/#k8s.io/kubernetes/vendor/#; s#^pkg/#k8s.io/kubernetes/pkg/#' | paste -sd,)
  "$src/openapi-gen" --logtostderr --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
    --output-file-base zz_generated.openapi --output-package "k8s.io/kubernetes/$output" -i "$inputs" -r /dev/null > /dev/null 2> "$src/openapi-gen.log"
}
machinery=(staging/src/k8s.io/apimachinery/pkg/apis/meta/v1 staging/src/k8s.io/apimachinery/pkg/runtime staging/src/k8s.io/apimachinery/pkg/version)
go build -o "$src/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
mapfile -t everything < <(ls -d staging/src/k8s.io/*/ | grep -v -e code-generator -e sample-)
generate pkg/generated/openapi pkg "${everything[@]}"
generate staging/src/k8s.io/kube-aggregator/pkg/generated/openapi "${machinery[@]}" staging/src/k8s.io/kube-aggregator
generate staging/src/k8s.io/apiextensions-apiserver/pkg/generated/openapi "${machinery[@]}" \
  staging/src/k8s.io/apiextensions-apiserver staging/src/k8s.io/api/autoscaling/v1
version="-X k8s.io/component-base/version.gitVersion=v1.20.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=20"
version+=" -X k8s.io/client-go/pkg/version.gitVersion=v1.20.2"
go build -ldflags "-s -w $version" -o "$bin/" ./cmd/kube-apiserver ./cmd/kube-controller-manager
"$bin/kube-apiserver" --version
