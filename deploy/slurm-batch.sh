#!/bin/bash
# A whole Scaler cluster inside one Slurm allocation: scheduler and object storage on the first node, an agent on every
# node. Submit it with the program that uses the cluster: sbatch --nodes=4 slurm-batch.sh python work.py
# The program finds the scheduler's address in SCALER_ADDRESS; the cluster ends with the program, or at the time limit.
#SBATCH --job-name=scaler
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=1:00:00
#SBATCH --signal=B:TERM@60
set -eu

# What nodes need before Scaler runs, such as: module load python; source /shared/env/bin/activate
SCALER_SETUP=${SCALER_SETUP:-:}
eval "$SCALER_SETUP"

if [ $# = 0 ]; then
  echo "usage: sbatch [option ...] $0 PROGRAM [argument ...]" >&2
  exit 2
fi
port=$((20000 + SLURM_JOB_ID % 10000))
host=${SCALER_HOST:-$(hostname)}
export SCALER_ADDRESS="tcp://$host:$port" SCALER_INSECURE=1

children=()
end() {
  trap '' TERM
  for child in "${children[@]}"; do kill -TERM "$child" 2>/dev/null || :; done
  wait
}
trap 'exit 143' TERM
trap end EXIT

# Whoever reaches these ports can run code as you: use the network of the cluster only.
scaler_scheduler "$SCALER_ADDRESS" &
children+=($!)
srun --overlap --kill-on-bad-exit=0 scaler_cluster "$SCALER_ADDRESS" --num-of-workers "${SLURM_CPUS_PER_TASK:-1}" &
children+=($!)

"$@" &
program=$!
children+=("$program")
wait "$program"
