import assert from "node:assert/strict";
import { Client } from "langsmith";
import { evaluate } from "langsmith/evaluation";


// Datasets, an evaluation and prompts, from making to deleting: node datasets.mjs URL KEY
const [apiUrl, apiKey] = process.argv.slice(2);
const client = new Client({ apiUrl, apiKey });
const all = async (items) => {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
};
const name = "from JavaScript";
const dataset = await client.createDataset(name, { description: "d" });
const attachments = { f: ["text/plain", new TextEncoder().encode("file")] };
await client.createExamples([
  { inputs: { n: 1 }, outputs: { n: 2 }, dataset_id: dataset.id, attachments, split: "test" },
  { inputs: { n: 2 }, outputs: { n: 4 }, dataset_id: dataset.id },
]);
const examples = await all(client.listExamples({ datasetId: dataset.id, includeAttachments: true }));
assert.deepEqual(examples.map((e) => e.inputs.n), [1, 2]);
assert.equal(await (await fetch(examples[0].attachments.f.presigned_url)).text(), "file");
await client.updateExample({ id: examples[0].id, dataset_id: dataset.id, inputs: { n: 5 } });
assert.equal((await client.readExample(examples[0].id)).inputs.n, 5);
await client.updateExamples([{ id: examples[1].id, dataset_id: dataset.id, inputs: { n: 6 } }]);
const version = await client.readDatasetVersion({ datasetId: dataset.id, tag: "latest" });
await client.updateDatasetTag({ datasetId: dataset.id, asOf: version.as_of, tag: "prod" });
assert.deepEqual(await client.listDatasetSplits({ datasetId: dataset.id }), ["base", "test"]);
await client.updateDatasetSplits({ datasetId: dataset.id, splitName: "x", exampleIds: [examples[0].id] });
await client.updateDataset({ datasetId: dataset.id, description: "new" });
assert.equal((await client.readDataset({ datasetId: dataset.id })).description, "new");
const diff = await client.diffDatasetVersions({ datasetId: dataset.id, fromVersion: "prod", toVersion: "latest" });
assert.deepEqual(diff.examples_modified, [examples[0].id]);
const shared = await client.shareDataset(dataset.id);
assert.equal((await client.readSharedDataset(shared.share_token)).name, name);
assert.equal((await client.listSharedExamples(shared.share_token)).length, 2);
await client.unshareDataset(dataset.id);
const file = { csvFile: new Blob(["q,a\n1,2\n"]), fileName: "f.csv" };
const csv = await client.uploadCsv({ ...file, inputKeys: ["q"], outputKeys: ["a"], name: `${name}, a file` });
assert.equal((await all(client.listExamples({ datasetId: csv.id })))[0].inputs.q, "1");
const same = ({ outputs, referenceOutputs }) => ({ key: "same", score: outputs.n === referenceOutputs.n });
const { results } = await evaluate(async ({ n }) => ({ n: n * 2 }), { data: name, evaluators: [same], client });
assert.deepEqual(results.map((row) => row.evaluationResults.results[0].score), [false, false]);
await client.deleteExample(examples[1].id);
await client.deleteExamples([examples[0].id], { hardDelete: true });
await client.deleteDataset({ datasetId: dataset.id });
assert.equal(await client.hasDataset({ datasetName: name }), false);
const prompt = "from-javascript";
const manifest = (template) => ({
  lc: 1,
  type: "constructor",
  id: ["langchain", "prompts", "prompt", "PromptTemplate"],
  kwargs: { input_variables: [], template, template_format: "f-string" },
});
await client.createPrompt(prompt, { description: "d", tags: ["a"] });
await client.createCommit(prompt, manifest("one"));
await client.createCommit(prompt, manifest("two"), { tags: ["prod"] });
assert.equal((await client.pullPromptCommit(prompt)).manifest.kwargs.template, "two");
assert.equal((await client.pullPromptCommit(`${prompt}:prod`)).manifest.kwargs.template, "two");
assert.equal((await all(client.listCommits(prompt))).length, 2);
assert.equal((await client.likePrompt(prompt)).likes, 1);
assert.ok((await all(client.listPrompts())).some((x) => x.repo_handle === prompt));
await client.updatePrompt(prompt, { readme: "r" });
await client.deletePrompt(prompt);
assert.equal(await client.promptExists(prompt), false);
