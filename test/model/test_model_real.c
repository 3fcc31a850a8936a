/* Goal: the key lists refuse nothing that published checkpoints carry. Method: configuration files
 * as the released models have them (facts of their model cards, written down here) go through their
 * family without tensors: the first complaint must be about the first tensor, not about a key.
 * Sizes that follow (rope reach, groups, ids) are in test_model_refuse and test_model_golden. */
#include <check.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/model/config.h"
#include "engine/model/family.h"

#define FP8_JSON                                                                                   \
    "{'activation_scheme':'dynamic','fmt':'e4m3','quant_method':'fp8','weight_block_size':[128,"   \
    "128]}"

static const struct {
    const char *family, *json;
} real[] = {
    {"llama", /* Llama 2 7B */
     "{'_name_or_path':'x','architectures':['LlamaForCausalLM'],'bos_token_id':1,'eos_token_id':2,"
     "'hidden_act':'silu','hidden_size':4096,'initializer_range':0.02,'intermediate_size':11008,"
     "'max_position_embeddings':4096,'model_type':'llama','num_attention_heads':32,"
     "'num_hidden_layers':32,'num_key_value_heads':32,'pretraining_tp':1,'rms_norm_eps':1e-05,"
     "'rope_scaling':null,'tie_word_embeddings':false,'torch_dtype':'float16',"
     "'transformers_version':'4.31.0','use_cache':true,'vocab_size':32000}"},
    {"llama", /* Llama 3.1 8B Instruct */
     "{'architectures':['LlamaForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'bos_token_id':128000,'eos_token_id':[128001,128008,128009],'hidden_act':'silu',"
     "'hidden_size':4096,'initializer_range':0.02,'intermediate_size':14336,"
     "'max_position_embeddings':131072,'mlp_bias':false,'model_type':'llama',"
     "'num_attention_heads':32,'num_hidden_layers':32,'num_key_value_heads':8,'pretraining_tp':1,"
     "'rms_norm_eps':1e-05,'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,"
     "'high_freq_factor':4.0,'original_max_position_embeddings':8192,'rope_type':'llama3'},"
     "'rope_theta':500000.0,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'transformers_version':'4.42.3','use_cache':true,'vocab_size':128256}"},
    {"qwen2", /* Qwen2.5 7B Instruct, with the long-context scaling its card describes */
     "{'architectures':['Qwen2ForCausalLM'],'attention_dropout':0.0,'bos_token_id':151643,"
     "'eos_token_id':151645,'hidden_act':'silu','hidden_size':3584,'initializer_range':0.02,"
     "'intermediate_size':18944,'max_position_embeddings':32768,'max_window_layers':28,"
     "'model_type':'qwen2','num_attention_heads':28,'num_hidden_layers':28,"
     "'num_key_value_heads':4,'rms_norm_eps':1e-06,'rope_theta':1000000.0,'rope_scaling':{"
     "'factor':4.0,'original_max_position_embeddings':32768,'type':'yarn'},'sliding_window':131072,"
     "'tie_word_embeddings':false,'torch_dtype':'bfloat16','transformers_version':'4.43.1',"
     "'use_cache':true,'use_sliding_window':false,'use_mrope':false,'vocab_size':152064}"},
    {"qwen3", /* Qwen3 8B */
     "{'architectures':['Qwen3ForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'bos_token_id':151643,'eos_token_id':151645,'head_dim':128,'hidden_act':'silu',"
     "'hidden_size':4096,'initializer_range':0.02,'intermediate_size':12288,"
     "'max_position_embeddings':40960,'max_window_layers':36,'model_type':'qwen3',"
     "'num_attention_heads':32,'num_hidden_layers':36,'num_key_value_heads':8,"
     "'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':1000000,'sliding_window':null,"
     "'tie_word_embeddings':false,'torch_dtype':'bfloat16','transformers_version':'4.51.0',"
     "'use_cache':true,'use_sliding_window':false,'vocab_size':151936}"},
    {"qwen3_moe", /* Qwen3 30B A3B, fp8 */
     "{'architectures':['Qwen3MoeForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'bos_token_id':151643,'decoder_sparse_step':1,'eos_token_id':151645,'head_dim':128,"
     "'hidden_act':'silu','hidden_size':2048,'initializer_range':0.02,'intermediate_size':6144,"
     "'max_position_embeddings':40960,'max_window_layers':48,'mlp_only_layers':[],"
     "'model_type':'qwen3_moe','moe_intermediate_size':768,'norm_topk_prob':true,"
     "'num_attention_heads':32,'num_experts':128,'num_experts_per_tok':8,'num_hidden_layers':48,"
     "'num_key_value_heads':4,'output_router_logits':false,'rms_norm_eps':1e-06,"
     "'rope_scaling':null,'rope_theta':1000000.0,'router_aux_loss_coef':0.001,"
     "'sliding_window':null,'tie_word_embeddings':false,'torch_dtype':'bfloat16',"
     "'use_cache':true,'use_sliding_window':false,'vocab_size':151936,"
     "'quantization_config':" FP8_JSON "}"},
    {"deepseek", /* DeepSeek-V2-Lite */
     "{'architectures':['DeepseekV2ForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'auto_map':{'AutoConfig':'x'},'aux_loss_alpha':0.001,'bos_token_id':100000,"
     "'eos_token_id':100001,'first_k_dense_replace':1,'hidden_act':'silu','hidden_size':2048,"
     "'initializer_range':0.02,'intermediate_size':10944,'kv_lora_rank':512,"
     "'max_position_embeddings':163840,'model_type':'deepseek_v2','moe_intermediate_size':1408,"
     "'moe_layer_freq':1,'n_group':1,'n_routed_experts':64,'n_shared_experts':2,"
     "'norm_topk_prob':false,'num_attention_heads':16,'num_experts_per_tok':6,"
     "'num_hidden_layers':27,'num_key_value_heads':16,'pretraining_tp':1,'q_lora_rank':null,"
     "'qk_nope_head_dim':128,'qk_rope_head_dim':64,'rms_norm_eps':1e-06,'rope_scaling':{"
     "'beta_fast':32,'beta_slow':1,'factor':40,'mscale':0.707,'mscale_all_dim':0.707,"
     "'original_max_position_embeddings':4096,'type':'yarn'},'rope_theta':10000,"
     "'routed_scaling_factor':1.0,'scoring_func':'softmax','seq_aux':true,"
     "'tie_word_embeddings':false,'topk_group':1,'topk_method':'greedy','torch_dtype':'bfloat16',"
     "'use_cache':true,'v_head_dim':128,'vocab_size':102400}"},
    {"deepseek", /* DeepSeek-V3 */
     "{'architectures':['DeepseekV3ForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'auto_map':{'AutoConfig':'x'},'bos_token_id':0,'eos_token_id':1,'ep_size':1,"
     "'first_k_dense_replace':3,'hidden_act':'silu','hidden_size':7168,'initializer_range':0.02,"
     "'intermediate_size':18432,'kv_lora_rank':512,'max_position_embeddings':163840,"
     "'model_type':'deepseek_v3','moe_intermediate_size':2048,'moe_layer_freq':1,'n_group':8,"
     "'n_routed_experts':256,'n_shared_experts':1,'norm_topk_prob':true,"
     "'num_attention_heads':128,'num_experts_per_tok':8,'num_hidden_layers':61,"
     "'num_key_value_heads':128,'num_nextn_predict_layers':1,'q_lora_rank':1536,"
     "'qk_nope_head_dim':128,'qk_rope_head_dim':64,'quantization_config':" FP8_JSON ","
     "'rms_norm_eps':1e-06,'rope_scaling':{'beta_fast':32,'beta_slow':1,'factor':40,'mscale':1.0,"
     "'mscale_all_dim':1.0,'original_max_position_embeddings':4096,'type':'yarn'},"
     "'rope_theta':10000,'routed_scaling_factor':2.5,'scoring_func':'sigmoid',"
     "'tie_word_embeddings':false,'topk_group':4,'topk_method':'noaux_tc',"
     "'torch_dtype':'bfloat16','use_cache':true,'v_head_dim':128,'vocab_size':129280}"},
    {"deepseek", /* Kimi-K2 Instruct */
     "{'architectures':['DeepseekV3ForCausalLM'],'attention_bias':false,'attention_dropout':0.0,"
     "'aux_loss_alpha':0.001,'bos_token_id':163584,'eos_token_id':163585,"
     "'first_k_dense_replace':1,'hidden_act':'silu','hidden_size':7168,'initializer_range':0.02,"
     "'intermediate_size':18432,'kv_lora_rank':512,'max_position_embeddings':131072,"
     "'model_type':'kimi_k2','moe_intermediate_size':2048,'moe_layer_freq':1,'n_group':1,"
     "'n_routed_experts':384,'n_shared_experts':1,'norm_topk_prob':true,"
     "'num_attention_heads':64,'num_experts_per_tok':8,'num_hidden_layers':61,"
     "'num_key_value_heads':64,'num_nextn_predict_layers':0,'pretraining_tp':1,"
     "'q_lora_rank':1536,'qk_nope_head_dim':128,'qk_rope_head_dim':64,"
     "'quantization_config':" FP8_JSON ",'rms_norm_eps':1e-06,'rope_scaling':{'beta_fast':1.0,"
     "'beta_slow':1.0,'factor':32.0,'mscale':1.0,'mscale_all_dim':1.0,"
     "'original_max_position_embeddings':4096,'type':'yarn'},'rope_theta':50000.0,"
     "'routed_scaling_factor':2.827,'scoring_func':'sigmoid','seq_aux':true,"
     "'tie_word_embeddings':false,'topk_group':1,'topk_method':'noaux_tc',"
     "'torch_dtype':'bfloat16','use_cache':true,'v_head_dim':128,'vocab_size':163840}"},
};

START_TEST(released_keys)
{
    struct err e = {0};
    const struct family *f = families[0];
    char text[4096];
    size_t n = strlen(real[_i].json);
    CHECK(n < sizeof text);
    for (size_t i = 0; i <= n; i++)
        text[i] = real[_i].json[i] == '\'' ? '"' : real[_i].json[i];
    json_t *o;
    ck_assert_msg(js_parse(&o, text, n, "config", &e) == OK, "%s", e.text);
    for (int i = 0; families[i] && strcmp(f->name, real[_i].family) != 0; i++)
        f = families[i];
    const char *arch = json_string_value(json_array_get(json_object_get(o, "architectures"), 0));
    struct model_info info = {.arch = arch};
    struct tensors *t = tensors_new(false);
    void *priv = NULL;
    ck_assert_int_lt(f->open(&priv, o, t, &info, &e), 0);
    ck_assert_str_eq(e.text, "tensor 'model.embed_tokens.weight' is missing");
    tensors_close(t);
    json_decref(o);
}
END_TEST

Suite *suite_model_real(void)
{
    Suite *s = suite_create("model_real");
    TCase *t = tcase_create("config");
    tcase_add_loop_test(t, released_keys, 0, (int)ARRAY_LEN(real));
    suite_add_tcase(s, t);
    return s;
}
