-- Checks batch jobs as sbatch submits them. slurm.conf: CliFilterPlugins=cli_filter/lua
-- The job goes on unchanged when the check fails or takes longer than BUDGET_S.
local HOOK = "shardwright-slurm"  -- its path where it is not in everybody's PATH
local BUDGET_S = 2

local function quoted(word)
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  if options["type"] ~= "sbatch" or offset > 0 then  -- one check for all parts of a job
    return slurm.SUCCESS
  end
  local hook = HOOK .. " filter " .. quoted(slurm.json_cli_options(options))
  -- Lua 5.1 does not tell how a command ended, so the command does.
  local pipe = io.popen(
    "timeout -k 0.1 " .. BUDGET_S .. " " .. hook .. " </dev/null; echo ended $?")
  if pipe == nil then
    return slurm.SUCCESS
  end
  local answer = pipe:read("*a")
  pipe:close()
  local code = tostring(answer:match("ended (%d+)\n$"))
  if code == "124" or code == "137" then
    slurm.log_info("shardwright: no answer within %d s, submitted unchanged", BUDGET_S)
    return slurm.SUCCESS
  elseif code ~= "0" then
    slurm.log_info("shardwright: not checked, goes on unchanged: %s ended with %s", HOOK, code)
    return slurm.SUCCESS
  end
  local mark = answer:match("^comment (shardwright:%S+)")
  if mark ~= nil then
    options["comment"] = mark
  end
  if answer:find("\nrefused\n", 1, true) then
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
